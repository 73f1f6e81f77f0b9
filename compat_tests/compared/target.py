"""A broker for tests, as a trial sees it: its address, and what can be done with it besides its service.

Owns the names of what is tried. Never judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Lacking(Exception):  # noqa: N818 - what is the case
    """The broker has no such feature; the text says how a user notices."""


class Target(ABC):
    """One running broker of one kind; a context manager. What the broker cannot do raises Lacking."""

    name: str
    bootstrap: str

    @abstractmethod
    def __enter__(self) -> Target: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def settings(self) -> Mapping[str, Any]:
        """Return the settings with which confluent-kafka connects."""
        return {"bootstrap.servers": self.bootstrap}

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, in any way that the broker offers."""
        raise Lacking("no way to create a topic")

    def fail(self, api: int, code: int, times: int) -> None:
        """Answer the next requests with an error."""
        raise Lacking("no errors")

    def fail_of(self, topic: str, api: int, code: int, times: int) -> None:
        """Answer the next requests with an error for only one topic."""
        raise Lacking("no errors of one topic")

    def delay(self, api: int, ms: int) -> None:
        """Delay the next answer."""
        raise Lacking("no delays")

    def lose_answer(self, api: int) -> None:
        """Execute the next request, and close its connection without an answer."""
        raise Lacking("no lost answers")

    def disconnect(self, api: int) -> None:
        """Close the connection of the next request without executing any of it."""
        raise Lacking("no broken connections")

    def advance(self, hours: float) -> None:
        """Move the broker's clock forward."""
        raise Lacking("time cannot be moved")

    def work(self) -> None:
        """Make retention and compaction run now."""
        raise Lacking("neither retention nor compaction")

    def apis_asked(self) -> list[int]:
        """Return the keys of the APIs that were requested since the first call of this method."""
        raise Lacking("requests are not recorded")

    def acks_asked(self) -> list[int]:
        """Return the `acks` of the Produce requests so far: whether requests can be read in decoded form."""
        raise Lacking("requests are not recorded with what they ask")

    def reset(self) -> None:
        """Return to the state at the start."""
        raise Lacking("a new one has to be started")

    def snapshot_and_restore(self, between: Any) -> None:
        """Save the state, call `between()`, and restore the state."""
        raise Lacking("nothing of the kind")

    def records(self, topic: str) -> list[bytes | None]:
        """Return the records of a topic, read without a client."""
        raise Lacking("only by a client")

    def move_leader(self, topic: str) -> None:
        """Elect another broker leader of partition 0 of a topic."""
        raise Lacking("no other leader")

    def kill_leader(self, topic: str) -> None:
        """End the broker that leads partition 0 of a topic."""
        raise Lacking("no broker can end")

    def restart(self) -> None:
        """Restart with the data from before."""
        raise Lacking("nothing is kept")

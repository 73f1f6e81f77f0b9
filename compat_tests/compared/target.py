"""A broker for tests, as a trial sees it: where it is, and what can be done with it beside its service.

Owns the names of what is tried. Never judges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Lacking(Exception):  # noqa: N818 - what is the case
    """There is nothing for this; the text says how one notices."""


class Target(ABC):
    """One running broker of one kind; a context manager. What it has not got raises Lacking."""

    name: str
    bootstrap: str

    @abstractmethod
    def __enter__(self) -> Target: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def settings(self) -> Mapping[str, Any]:
        """Return how confluent-kafka comes."""
        return {"bootstrap.servers": self.bootstrap}

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic, by whatever there is for it."""
        raise Lacking("no way to create a topic")

    def fail(self, api: int, code: int, times: int) -> None:
        """Answer the next requests with an error."""
        raise Lacking("no errors")

    def fail_of(self, topic: str, api: int, code: int, times: int) -> None:
        """Answer the next requests with an error for one topic alone."""
        raise Lacking("no errors of one topic")

    def delay(self, api: int, ms: int) -> None:
        """Let the next answer come late."""
        raise Lacking("no delays")

    def lose_answer(self, api: int) -> None:
        """Do what the next request asks, and break its connection without an answer."""
        raise Lacking("no lost answers")

    def disconnect(self, api: int) -> None:
        """Break the connection of the next request, of which nothing is done."""
        raise Lacking("no broken connections")

    def advance(self, hours: float) -> None:
        """Let time pass."""
        raise Lacking("time cannot be moved")

    def work(self) -> None:
        """Have retention and compaction done now."""
        raise Lacking("neither retention nor compaction")

    def apis_asked(self) -> list[int]:
        """Return the keys of the APIs that were asked, since this was first called."""
        raise Lacking("requests are not recorded")

    def acks_asked(self) -> list[int]:
        """Return what was asked of `acks` in Produce requests: whether requests are there decoded."""
        raise Lacking("requests are not recorded with what they ask")

    def reset(self) -> None:
        """Be as at the start."""
        raise Lacking("a new one has to be started")

    def snapshot_and_restore(self, between: Any) -> None:
        """Keep what is there, call `between()`, and put it back."""
        raise Lacking("nothing of the kind")

    def records(self, topic: str) -> list[bytes | None]:
        """Return what lies in a topic, without a client."""
        raise Lacking("only by a client")

    def move_leader(self, topic: str) -> None:
        """Let another broker lead partition 0 of a topic."""
        raise Lacking("no other leader")

    def kill_leader(self, topic: str) -> None:
        """End the broker that leads partition 0 of a topic."""
        raise Lacking("no broker can end")

    def restart(self) -> None:
        """Start anew with the data that was there."""
        raise Lacking("nothing is kept")

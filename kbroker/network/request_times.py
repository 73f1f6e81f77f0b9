"""How many requests there were of each API and version, and how long the latest of them took.

Owns the numbers. Counting is one addition a request. Times are taken of some of them: of the first hundred of each API
and version, and from then on of one in sixteen, since whoever takes a request's time must know its API. Of each API the
latest thousand of those are kept, as Kafka keeps a sample of about as many.

A request's time is from when it is run to when its answer is handed to the socket: with what it waits for others and
for the log, without what it waits for its turn, or for the client to take the answer.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, Protocol

OFTEN: Final = 16
KNOWN: Final = 100
KEPT: Final = 1000
FETCH: Final = 1
_KEY_BYTES = 2
_LAST_KEY = 127
_API = struct.Struct(">h").unpack_from


class Tally:
    """The requests of one API and version."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests = 0


class Asker(Protocol):
    """What is known of who asks."""

    follows: bool
    """Whether it is another broker that copies from here."""


class Waiting(Protocol):
    """A request that is not answered at one go."""

    since: float


class RequestTimes:
    """The requests of all connections of a broker."""

    def __init__(self) -> None:
        self.due = 0
        """How many requests go by before one's time is taken."""
        self.tallies: dict[tuple[int, int], Tally] = {}
        self.took: dict[int, deque[float]] = {}
        """Seconds, by API."""
        self.took_followers: deque[float] = deque(maxlen=KEPT)
        self.took_consumers: deque[float] = deque(maxlen=KEPT)
        """Those of Fetch, of other brokers and of all others."""

    def tally(self, key: int, version: int) -> Tally:
        """Return where requests of an API and version are counted."""
        found = self.tallies.get((key, version))
        if found is None:
            found = self.tallies[key, version] = Tally()
        return found

    def sample(self, frame: memoryview, asker: Asker, work: Waiting | None, since: float, until: float) -> None:
        """Take the time of a request that was run; or see that it is taken, where there is `work` left to do."""
        self.due = OFTEN - 1
        if work is not None:
            work.since = since
        elif len(frame) >= _KEY_BYTES:
            self.note(_API(frame)[0], asker, until - since)

    def note(self, key: int, asker: Asker, seconds: float) -> None:
        """Take the time of a request that is answered."""
        kept = self.took.get(key)
        if kept is None:
            if not 0 <= key <= _LAST_KEY:  # the beginning of what a client sends while it logs in
                return
            kept = self.took[key] = deque(maxlen=KEPT)
        kept.append(seconds)
        if key == FETCH:
            (self.took_followers if asker.follows else self.took_consumers).append(seconds)

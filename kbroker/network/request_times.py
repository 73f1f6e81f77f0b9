"""Counts the requests of each API and version, and keeps the times of the latest requests.

Owns the numbers. Counting is one addition for each request. A measurement takes more time, because it needs the
request's API. So times are measured for the first hundred requests of each API and version, and then for one request in
sixteen. The latest thousand times of each API are kept, about as many as in Kafka's sample.

A request's time begins with its first run, and ends when its response is passed to the socket. This time includes
waiting for other brokers and for the log. It does not include waiting for the request's turn or for the client to read
the response.
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
    """The facts about a client."""

    follows: bool
    """Whether the client is another broker that fetches from this broker."""


class Waiting(Protocol):
    """A request that is answered in several steps."""

    since: float


class RequestTimes:
    """The requests of all connections of a broker."""

    def __init__(self) -> None:
        self.due = 0
        """The number of requests to skip before the next measurement."""
        self.tallies: dict[tuple[int, int], Tally] = {}
        self.took: dict[int, deque[float]] = {}
        """The times in seconds, by API."""
        self.took_followers: deque[float] = deque(maxlen=KEPT)
        self.took_consumers: deque[float] = deque(maxlen=KEPT)
        """The times of Fetch requests: `took_followers` from other brokers, `took_consumers` from all other clients."""

    def tally(self, key: int, version: int) -> Tally:
        """Return the counter of an API and version."""
        found = self.tallies.get((key, version))
        if found is None:
            found = self.tallies[key, version] = Tally()
        return found

    def sample(self, frame: memoryview, asker: Asker, work: Waiting | None, since: float, until: float) -> None:
        """Record the time of a request that was run.

        If `work` of the request remains, the time is recorded when the work ends.
        """
        self.due = OFTEN - 1
        if work is not None:
            work.since = since
        elif len(frame) >= _KEY_BYTES:
            self.note(_API(frame)[0], asker, until - since)

    def note(self, key: int, asker: Asker, seconds: float) -> None:
        """Record the time of an answered request."""
        kept = self.took.get(key)
        if kept is None:
            if not 0 <= key <= _LAST_KEY:  # this is not a key, but part of a SASL token
                return
            kept = self.took[key] = deque(maxlen=KEPT)
        kept.append(seconds)
        if key == FETCH:
            (self.took_followers if asker.follows else self.took_consumers).append(seconds)

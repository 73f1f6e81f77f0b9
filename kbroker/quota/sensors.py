"""The counters of all buckets in use, bounded in number.

Owns when a counter is dropped: after an hour without use, as in Kafka, or earlier if there would be too many, the
longest unused first. Never counts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import sha256
from itertools import islice
from typing import Final, Generic, TypeVar

from kbroker.quota.limits import Bucket

EXPIRY_MS: Final = 3_600_000
MOST: Final = 10_000
"""Buckets of one kind: some 15 MB."""
_LONGEST_NAME: Final = 256
"""Longest client id that is kept; a longer one is replaced by its digest."""

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Sensors(Generic[K, S]):
    """One counter for each key, created by `make`."""

    def __init__(self, make: Callable[[], S], most: int = MOST) -> None:
        self._make = make
        self._most = most
        self._known: dict[K, tuple[S, float]] = {}  # the longest unused first

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K, now_ms: float) -> S:
        """Return the counter of a key, a new one if missing."""
        known = self._known.pop(key, None)
        if known is None:
            self._make_room(now_ms)
        sensor = self._make() if known is None or now_ms - known[1] >= EXPIRY_MS else known[0]
        self._known[key] = (sensor, now_ms)
        return sensor

    def _make_room(self, now_ms: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if len(self._known) < self._most and now_ms - self._known[oldest][1] < EXPIRY_MS:
                return
            del self._known[oldest]

    def latest(self, most: int) -> list[tuple[K, S]]:
        """Return the counters of at most this many keys, the last used first."""
        return [(key, self._known[key][0]) for key in islice(reversed(self._known), most)]

    def clear(self) -> None:
        """Drop all."""
        self._known.clear()


def key_of(bucket: Bucket) -> Bucket:
    """Return the key of a bucket: clients choose their ids, which may be long."""
    user, client_id = bucket
    if client_id is None or len(client_id) <= _LONGEST_NAME:
        return bucket
    return user, f"{len(client_id)} {sha256(client_id.encode(errors='surrogatepass')).hexdigest()}"

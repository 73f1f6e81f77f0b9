"""The common parts of the scans of all sources: filtered batches in memory, the clock, and a limit on large batches.

Owns the memory of filtered batches, which has one limit for all views of a broker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from kbroker.clock import Clock
from kbroker.long_work import FewAtOnce
from kbroker.partition import Partition
from kbroker.views.header_indexes import HeaderIndexes

KEPT_BYTES: Final = 32 << 20
"""The maximum number of bytes of filtered batches that are kept for further readers."""
_ENTRY_BYTES: Final = 300


class Kept:
    """The filtered batches that were used last, with the offsets of their last matches."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most = most
        self.size = 0
        self._by_key: OrderedDict[tuple[object, ...], tuple[bytes, int]] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> tuple[bytes, int] | None:
        """Return a filtered batch, and note that it was used."""
        found = self._by_key.get(key)
        if found is not None:
            self._by_key.move_to_end(key)
        return found

    def put(self, key: tuple[object, ...], batch: bytes, last_match: int) -> None:
        """Keep a filtered batch."""
        size = len(batch) + _ENTRY_BYTES
        if key in self._by_key or size > self._most:
            return
        self._by_key[key] = batch, last_match
        self.size += size
        while self.size > self._most:
            _, (oldest, _) = self._by_key.popitem(last=False)
            self.size -= len(oldest) + _ENTRY_BYTES


class Shared:
    """The parts of the broker that all scans use."""

    def __init__(
        self,
        clock: Clock,
        openings: FewAtOnce[Any],
        is_hosted: Callable[[Partition], bool],
        indexes: HeaderIndexes,
    ) -> None:
        self.clock = clock
        self.indexes: Final = indexes
        self.openings = openings
        """Opens large batches, a few at a time."""
        self.is_hosted = is_hosted
        """Returns whether a partition is hosted here."""
        self.kept: Final = Kept()
        self.scanned = 0
        """The number of source records that were scanned for views."""

"""The partition under its views: whether it is still the same log, how far consumers may read, and opened batches.

Owns what the scan of new batches, the search for last matches and the readers of one partition have in common. Never
decides what is scanned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kbroker.log.partition_log import PartitionLog
from kbroker.partition import Partition
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader, iter_batches
from kbroker.views.opened_batch import OpenedBatch, damaged, opened
from kbroker.views.shared import Shared

if TYPE_CHECKING:
    from kbroker.filters.filtering import Filter

PIECE: Final = 1 << 20
"""The bytes that are read from the source together."""
_LARGE: Final = 1 << 16
"""A batch of more bytes is opened beside few others, because it may need much memory."""


class Source:
    """A partition with views."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self.shared = shared
        self._truncations = self.log.truncations
        self.upto = 0
        """Up to here batches are scanned for the attached selections."""

    @property
    def is_current(self) -> bool:
        """Whether the log is still the one that was scanned: neither replaced nor truncated."""
        return self.partition.log is self.log and self._truncations == self.log.truncations

    def bound(self, *, committed: bool = False) -> int:
        """Return the end of what consumers can read of the source. Raises OSError."""
        source = self.log
        end = source.last_stable_offset if committed else source.high_watermark
        if source.maturity is not None:
            end = min(end, source.mature_end(self.shared.clock.now_ms()))
        return end

    async def open(self, header: BatchHeader, batch: memoryview) -> OpenedBatch:
        """Open a batch; large ones a few at a time. Raises ApiError."""
        if header.size <= _LARGE:
            return await opened(header, batch)
        found: OpenedBatch = await self.shared.openings.run(lambda: opened(header, batch))
        return found

    async def select(self, found: OpenedBatch, wanted: Filter) -> list[int]:
        """Return the indexes of the records that match, in order. Raises ApiError."""
        try:
            return await found.select(wanted, self.partition.index)
        except Malformed as error:
            raise damaged(found.header) from error

    def key(self, wanted: Filter, header: BatchHeader) -> tuple[object, ...]:
        """Return the name under which a filtered batch is kept in memory."""
        return id(self), wanted.text, header.base_offset, header.crc


def complete(view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the complete batches of a piece of a log."""
    for position, header in iter_batches(view):
        yield header, view[position : position + header.size]

"""The source partition of views: the check of its log, the end for consumers, and opened batches.

Owns the common parts of the scan of new batches, of the search for last matches, and of the readers of one partition.
Never decides which part of the log is scanned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.header_index import HeaderIndex
from kbroker.long_work import turn
from kbroker.partition import Partition
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader, iter_batches
from kbroker.views.opened_batch import OpenedBatch, damaged, opened
from kbroker.views.shared import Shared

if TYPE_CHECKING:
    from kbroker.filters.filtering import Filter

PIECE: Final = 1 << 20
"""The size in bytes of one read from the source."""
_GAP: Final = 1 << 14
"""The maximum size in bytes of a gap without a match that is read and skipped.

A second read after the gap would take longer.
"""
_LARGE: Final = 1 << 16
"""The size in bytes above which few batches are opened at the same time, because each may need much memory."""


class Possible(NamedTuple):
    """A part of the log that may have matches: the `size` bytes from `offset` on, or only some blocks in them."""

    offset: int
    size: int
    header_index: HeaderIndex | None = None
    bits: int = 0
    end: int = 0
    """The offset up to which the index is valid. Compaction may have joined its segment with the next segment."""

    def has(self, offset: int) -> bool:
        """Whether the batch that begins at an offset may have a match."""
        known = self.header_index
        if known is None or not known.base_offset <= offset < self.end:
            return True
        return bool(self.bits >> known.block_at(offset) & 1)


def _together(index: HeaderIndex, block: int, rest: int) -> int:
    """Return the number of bytes from a block to the next large gap.

    `rest` is a bitmap of this and the later blocks.
    """
    start = index.position_of(block)
    while True:
        block_count = ((rest + 1) & ~rest).bit_length() - 1
        rest >>= block_count
        block += block_count
        end = index.position_of(block)
        gap = (rest & -rest).bit_length() - 1
        if not rest or end - start >= PIECE or index.position_of(block + gap) - end > _GAP:
            return min(end - start, PIECE)
        rest >>= gap
        block += gap


class Source:
    """A partition with views."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self.shared = shared
        self._truncations = self.log.truncations
        self.upto = 0
        """The offset up to which batches are scanned for the attached selections."""

    @property
    def is_current(self) -> bool:
        """Whether the scanned log was neither replaced nor truncated."""
        return self.partition.log is self.log and self._truncations == self.log.truncations

    def bound(self, *, committed: bool = False) -> int:
        """Return the end of the source's records that consumers can read. Raises OSError."""
        source = self.log
        end = source.last_stable_offset if committed else source.high_watermark
        if source.maturity is not None:
            end = min(end, source.mature_end(self.shared.clock.now_ms()))
        return end

    # -- where matches may be

    async def next_possible(self, wanted: Filter, offset: int, bound: int, has_time: Callable[[], bool]) -> Possible:
        """Return the first part of the log, at or after `offset`, that may have a match.

        Without an index, the part begins at `offset`. Raises OSError.
        """
        while offset < bound and has_time() and self.is_current:
            segments = self.log.segments
            place = segments.index_at(offset)
            segment = segments[place]
            plan = None if segment is segments.active else await self.shared.indexes.plan(self.log, segment, wanted)
            if segments.index_of(segment) != place or not self.is_current:
                continue
            if plan is None:
                break
            index, bits = plan
            end = segments.bases[place + 1]
            block = index.block_at(offset)
            rest = bits >> block
            if rest:
                skipped = (rest & -rest).bit_length() - 1
                if skipped:
                    block += skipped
                    rest >>= skipped
                    offset = index.offset_of(block)
                return Possible(offset, _together(index, block, rest), index, bits, end)
            offset = end
            await turn
        return Possible(offset, PIECE)

    async def last_possible(self, wanted: Iterable[Filter], end: int) -> tuple[int, HeaderIndex | None, int]:
        """Return the end of the last block before `end` that may have a match of any of these filters.

        Also return the index of its segment, and the blocks that may have matches, if they are known. Raises OSError.
        """
        every = list(wanted)
        while end > self.log.log_start_offset and self.is_current:
            segments = self.log.segments
            segment = segments[segments.index_at(end - 1)]
            bits = 0
            index: HeaderIndex | None = None
            for each in [] if segment is segments.active else every:
                plan = await self.shared.indexes.plan(self.log, segment, each)
                if plan is None:
                    return end, None, 0
                index = plan[0]
                bits |= plan[1]
            if segments.index_of(segment) < 0:
                continue
            if index is None:
                break
            block = index.block_at(end - 1)
            below = bits & (2 << block) - 1
            if below:
                last = below.bit_length() - 1
                return (end if last == block else index.offset_of(last + 1)), index, bits
            end = segment.base_offset
            await turn
        return end, None, 0

    # -- batches

    async def open(self, header: BatchHeader, batch: memoryview) -> OpenedBatch:
        """Open a batch. Only a few large batches are opened at the same time. Raises ApiError."""
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

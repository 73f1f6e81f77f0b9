"""One round of cleaning a log: read the dirty part, then rewrite all segments without superseded records.

Owns the order of the work (Kafka's Cleaner.doClean) and the grouping of segments. Never replaces a segment: it writes
`.cleaned` files, one group after the other, and the broker replaces the old segments with them. A damaged batch ends
the round with Malformed, because the cleaner must not remove it. An intact batch with unreadable records stays
unchanged, and older records with its keys also stay.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kbroker.log.cleaner.batch_filter import BatchFilter, LastBatch
from kbroker.log.cleaner.cleaned_segment import CleanedSegment
from kbroker.log.cleaner.dirty_part import read_dirty_part
from kbroker.log.cleaner.job_format import CleaningJob
from kbroker.log.cleaner.reading import SegmentReader
from kbroker.log.cleaner.transactions import CleanedTransactions
from kbroker.log.files import CLEANED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET
from kbroker.protocol.records import BatchHeader

# the maximum number of segments in a group: the broker's loop needs a few renames to replace each segment
_SEGMENTS_A_GROUP: Final = 64
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_COUNT: Final = struct.Struct(">i")


class CleanedGroup(NamedTuple):
    """Segments whose replacement is complete and on disk."""

    bases: list[int]
    bytes_before: int
    bytes_after: int


class Cleaning:
    """A round over one log.

    `spend` is called with the bytes read or written. It may wait, or raise an error to end the round.
    """

    def __init__(self, job: CleaningJob, directory_fd: int, spend: Callable[[int], None]) -> None:
        self._job = job
        self._directory_fd = directory_fd
        self._spend = spend
        self._reader = SegmentReader(directory_fd, job.io_bytes, spend)
        self.end_offset = job.first_dirty
        """The offset up to which the log is clean after all groups have replaced their segments."""
        self.keyless = self.unreadable_count = 0
        self.unreadable: list[str] = []

    @property
    def bytes_read(self) -> int:
        """The number of bytes of logs and indexes that were read so far."""
        return self._reader.bytes_read

    def run(self) -> Iterator[CleanedGroup]:
        """Do the work. Raises OSError, Malformed, and the exceptions of `spend`."""
        self._remove_leftovers()
        job = self._job
        offsets = read_dirty_part(job, self._reader)
        self.end_offset = offsets.end
        transactions = CleanedTransactions(job.aborted)
        producers = {producer_id: LastBatch(last, epoch) for producer_id, last, epoch in job.producers}
        rules = BatchFilter(
            offsets,
            transactions,
            producers,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            max_message_bytes=job.max_message_bytes,
        )
        for group in self._groups(offsets.end):
            yield self._clean(group, rules, transactions)
        self.keyless = rules.keyless
        self.unreadable, self.unreadable_count = rules.unreadable, rules.unreadable_count

    def _remove_leftovers(self) -> None:
        # If a `.cleaned` file remained after a crash, the next start would undo the replacement of all segments after
        # it.
        for name in os.listdir(self._directory_fd):
            if name.endswith(CLEANED_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._directory_fd)

    def _groups(self, end: int) -> Iterator[list[tuple[int, int]]]:
        """Yield groups of neighbouring segments; each group is at most as large as one segment may be."""
        job = self._job
        following = {base: after for (base, _), (after, _) in zip(job.segments, job.segments[1:], strict=False)}
        group: list[tuple[int, int]] = []
        sums = [0, 0, 0]
        for base, size in job.segments:
            if base >= end:
                break
            sizes = [size, self._file_size(base, INDEX_SUFFIX), self._file_size(base, TIME_INDEX_SUFFIX)]
            total = [one + other for one, other in zip(sums, sizes, strict=True)]
            last_offset = following.get(base, job.upper) - 1
            fits = total[0] <= job.segment_bytes and max(total[1:]) <= job.index_bytes
            near = not group or size == 0 or last_offset - group[0][0] <= MAX_RELATIVE_OFFSET
            if group and (not fits or not near or len(group) == _SEGMENTS_A_GROUP):
                yield group
                group, total = [], sizes
            group.append((base, size))
            sums = total
        if group:
            yield group

    def _file_size(self, base: int, suffix: str) -> int:
        try:
            return os.stat(f"{base:020d}{suffix}", dir_fd=self._directory_fd).st_size
        except FileNotFoundError:
            return 0

    def _clean(
        self, group: list[tuple[int, int]], rules: BatchFilter, transactions: CleanedTransactions
    ) -> CleanedGroup:
        cleaned = CleanedSegment(self._directory_fd, group[0][0], self._job.index_interval)
        last_base, last_size = next(((base, size) for base, size in reversed(group) if size), group[-1])
        transactions.retained.clear()
        try:
            for base, size in group:
                final = last_size if base == last_base else -1
                for position, header, batch in self._reader.forward(base, size):
                    # The cleaned group keeps its last offset. Recovery determines from it which segments the group
                    # replaced.
                    kept = rules.apply(batch, header, position + header.size == final)
                    if kept is batch:
                        self._spent(cleaned.append(batch, header.last_offset, _timestamp_of(header)))
                    elif kept is not None:
                        self._spent(cleaned.append(kept, header.last_offset, _new_timestamp(kept)))
            modified = os.stat(f"{group[-1][0]:020d}{LOG_SUFFIX}", dir_fd=self._directory_fd).st_mtime_ns
            self._spent(cleaned.finish(transactions.retained, modified))
        except BaseException:
            cleaned.discard()
            raise
        return CleanedGroup([base for base, _ in group], sum(size for _, size in group), cleaned.size)

    def _spent(self, size: int) -> None:
        if size:
            self._spend(size)


def _timestamp_of(header: BatchHeader) -> int:
    return header.max_timestamp if header.record_count else -1


def _new_timestamp(batch: bytes | memoryview) -> int:
    if not _COUNT.unpack_from(batch, 57)[0]:
        return -1
    timestamp: int = _MAX_TIMESTAMP.unpack_from(batch, 35)[0]
    return timestamp

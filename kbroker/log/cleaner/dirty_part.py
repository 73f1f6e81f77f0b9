"""The first pass of a round: find the batch with the last record of each key in the dirty part.

Owns the decision at which offset the table of keys ends. Never writes a file.

The dirty part is read backwards. If a batch contains a key that was not seen before, the batch contains the last record
of that key. So the pass keeps only a set of seen keys. A table with the last place of every key would need far more
memory and memory accesses, because the place of a repeated key would change many times.
"""

from __future__ import annotations

import contextlib
from contextlib import closing
from typing import Final

from kbroker.log.cleaner.batch_filter import read_records
from kbroker.log.cleaner.job_format import CleaningJob
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.reading import SegmentReader
from kbroker.log.cleaner.transactions import AbortedRanges
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader

_LEAST_FULL: Final = 0.5
_MOST_GROWTHS: Final = 5


def read_dirty_part(job: CleaningJob, reader: SegmentReader) -> OffsetMap:
    """Return the table of keys. The compaction round ends at the table's `end`. Raises Malformed and OSError."""
    with contextlib.suppress(Malformed):
        return _DirtyPart(job, reader, use_index=True).read()
    # The log itself may be intact: a wrong index may have caused the error of the backward reader.
    return _DirtyPart(job, reader, use_index=False).read()


class _DirtyPart:
    """The segments from the first dirty segment on.

    A place is the number of bytes from the beginning of these segments.
    """

    def __init__(self, job: CleaningJob, reader: SegmentReader, *, use_index: bool) -> None:
        self._job = job
        self._reader = reader
        self._use_index = use_index
        self._aborted = AbortedRanges(job.aborted)
        self._segments: list[tuple[int, int, int]] = []  # place, base offset, size
        place = 0
        ends = [*(base for base, _ in job.segments), job.upper][1:]
        for (base, size), end in zip(job.segments, ends, strict=True):
            if end > job.first_dirty:
                self._segments.append((place, base, size))
                place += size
        self._size = place

    def read(self) -> OffsetMap:
        """Fill a table backwards, from a place chosen so that the table neither overflows nor stays mostly empty.

        A round has to clean the beginning of the dirty part, but reading backwards fills the table with the end first.
        A table that became full is therefore discarded. The discarded table only shows the number of bytes of the log
        that fit into a table. The next attempt covers about that many bytes of the beginning, and at least a quarter
        less than the last attempt. If the beginning contains fewer keys, a few further attempts cover more of the
        beginning. If keys are evenly spread, one or two attempts are enough.
        """
        offsets, full_at = self._fill(self._size)
        if full_at is None:
            return offsets
        first = self._first_place()
        fitting, too_far = first, self._size
        limit = _shortened(first, self._size, full_at)
        growths = 0
        while True:
            offsets, full_at = self._fill(limit)
            if full_at is not None:
                too_far = limit
                # The table contains each key once, so a part of the log that once fitted fits again.
                limit = _shortened(first, limit, full_at) if fitting == first else fitting
                continue
            fitting = limit
            if offsets.fullness() >= _LEAST_FULL or growths == _MOST_GROWTHS or too_far - fitting <= 1:
                return offsets
            growths += 1
            limit = min(first + (limit - first) * 4, (limit + too_far + 1) // 2)

    def _fill(self, limit: int) -> tuple[OffsetMap, int | None]:
        """Return a table of the batches that begin before `limit`.

        If the table is full, also return the size in bytes of the batches that fit into a table, else None.
        """
        job = self._job
        offsets = OffsetMap(job.first_dirty, max(job.upper, job.first_dirty), job.map_bytes)
        for place, base, size in reversed(self._segments):
            if place >= limit:
                offsets.end_at(base)
                continue
            with closing(self._reader.backward(base, size, use_index=self._use_index)) as batches:
                for position, header, batch in batches:
                    if header.last_offset < job.first_dirty:
                        return offsets, None
                    if place + position >= limit:
                        offsets.end_at(header.base_offset)
                    elif not self._add(offsets, header, batch):
                        return offsets, min(limit, self._size) - (place + position + header.size)
        return offsets, None

    def _add(self, offsets: OffsetMap, header: BatchHeader, batch: memoryview) -> bool:
        if header.is_control or not header.record_count or self._aborted.hold(header):
            return True
        try:
            data, runs = read_records(batch, header, self._job.max_message_bytes)
        except Malformed:
            return offsets.set_apart(header.base_offset)
        return offsets.add(data, runs, header.base_offset)

    def _first_place(self) -> int:
        """Return the place at which the first dirty batch begins."""
        place, base, size = self._segments[0]
        for position, header, _ in self._reader.forward(base, size):
            if header.last_offset >= self._job.first_dirty:
                return place + position
        return place + size


def _shortened(first: int, end: int, fitted: int) -> int:
    """Return a new end of the part from `first` to `end`, of which only the last `fitted` bytes fitted into a table."""
    fitted = fitted * 15 // 16  # other parts of the log may contain slightly more keys per byte
    return first + max(min(fitted, (end - first) * 3 // 4), 1)

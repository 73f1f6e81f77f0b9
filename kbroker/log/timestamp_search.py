"""The search for an offset by its timestamp (ListOffsets), which needs a look at single records.

Owns that search over the segments of a log, in slices: a batch that is stored may unpack to any size. Never changes
what a log holds, though it repairs indexes on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from kbroker.divided import Divided
from kbroker.log.batch_continuity import ends_well, proven_end
from kbroker.log.batch_scan import scan_headers
from kbroker.log.files import read_at
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.record_walk import record_slices
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchHeader, compute_crc, wrap

_MAX_DECOMPRESSED = 1 << 30  # these batches have been accepted already; the bound only stops a broken file
_I64 = 2**63
_CHECKED_BYTES = 1 << 20  # of what a search passes over; the time index brings it nearer than that, but for odd times


Found = tuple[int, int, int]
"""Offset, timestamp in ms, leader epoch."""


class TimestampSearch:
    """The search in one log. It is work in slices: whatever the log holds between two of them is what counts."""

    __slots__ = ("_closed", "_newest", "_segments")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._closed: list[Segment] = []
        self._newest: list[int] = []  # the largest timestamp up to each of the closed segments

    def first_at(self, timestamp: int, extent: Callable[[], LogExtent]) -> Divided[Found | None]:
        """Find the first record at or after `timestamp`; raises ApiError(CORRUPT_MESSAGE)."""
        passed = 0
        while True:
            now = extent()
            start = max(now.start_offset, passed)
            found = self._first_batch(timestamp, now, start)
            if found is None:
                return None
            header, batch = found
            record = yield from _search(header, batch, timestamp, start)
            if record is not None:
                return record
            passed = header.last_offset + 1
            yield

    def _first_batch(self, timestamp: int, extent: LogExtent, start: int) -> tuple[BatchHeader, bytes] | None:
        """Return the first batch from `start` on that says it holds such a timestamp."""
        segments = self._segments
        first = max(self._first_candidate(timestamp), segments.index_at(start - 1) if start else 0)
        for index in range(first, len(segments)):
            for found in _batches_at(segments, extent, index, timestamp, start):
                return found
        return None

    def _first_candidate(self, timestamp: int) -> int:
        """Return the index of the first segment that may hold `timestamp` or a later one.

        What the closed segments say together is remembered for as long as they are the same, and their ends are proven.
        """
        closed = self._segments[:-1]
        if self._closed != closed:
            largest = -1
            newest: list[int] = []
            for segment in closed:
                largest = max(largest, segment.max_timestamp)
                if segment.indexes.damaged or (segment.found.unproven and not segment.found.end_proven):
                    return bisect_left(newest, timestamp)  # whoever comes to this one has to look
                newest.append(largest)
            self._closed, self._newest = closed, newest
        return bisect_left(self._newest, timestamp)

    def largest(self, extent: Callable[[], LogExtent]) -> Divided[Found | None]:
        """Find the first record that has the largest timestamp; raises ApiError(CORRUPT_MESSAGE)."""
        segments = self._segments
        index = max(range(len(segments)), key=lambda each: segments[each].max_timestamp)
        timestamp, segment = segments[index].max_timestamp, segments[index]
        start = segment.base_offset
        while timestamp >= 0 and (index := segments.index_of(segment)) >= 0:
            found = next(_batches_at(segments, extent(), index, timestamp, start), None)
            if found is None:
                return None
            header, batch = found
            record = yield from _search(header, batch, timestamp, 0)
            if record is not None:
                return record
            start = header.last_offset + 1
            yield
        return None


def _batches_at(
    segments: Segments, extent: LogExtent, index: int, timestamp: int, start_offset: int
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield (header, bytes) of a segment's batches from `start_offset` on that hold `timestamp` or a later one.

    What is passed over is part of the answer: what a start found is checked before it counts, as far as that is near.
    Raises ApiError(CORRUPT_MESSAGE).
    """
    segment = segments[index]
    anchor = segment.place_by_time(timestamp, start_offset)
    if segment.indexes.damaged or not ends_well(segments, extent, index):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    if anchor is None:
        return
    file, end, passed_over = segment.handle, anchor, 0
    for place, header in scan_headers(file, anchor, segment.size):
        end = place + header.size
        wanted = header.max_timestamp >= timestamp and header.last_offset >= start_offset
        if not wanted and (passed_over > _CHECKED_BYTES or place >= segment.found.unchecked):
            continue
        batch = read_at(file.fd, header.size, place)
        passed_over += header.size
        if place < segment.found.unchecked and compute_crc(batch) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        if wanted:
            if proven_end(segments, extent, index, anchor, place, place) <= place:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE)
            yield header, batch
    if end < segment.size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)


def _search(header: BatchHeader, batch: bytes, timestamp: int, start_offset: int) -> Divided[Found | None]:
    """Return the first of a batch's records at or after `timestamp`; raises ApiError(CORRUPT_MESSAGE)."""
    base = header.base_timestamp
    try:
        for found in record_slices(memoryview(batch), header, _MAX_DECOMPRESSED):
            if found is None:
                yield
                continue
            if not header.timestamp_type:
                stamps = list(found.stamps())
                if base + max(stamps) < timestamp and base + min(stamps) >= -_I64:
                    yield
                    continue
            for delta, stamp, _, _ in found.rows():
                time = header.max_timestamp if header.timestamp_type else wrap(base + stamp)
                if time >= timestamp and header.base_offset + delta >= start_offset:
                    return header.base_offset + delta, time, header.leader_epoch
            yield
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return None

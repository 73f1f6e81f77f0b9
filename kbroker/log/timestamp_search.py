"""The search for an offset by its timestamp (ListOffsets), which needs a look at single records.

Owns that search over the segments of a log. Never changes what a log holds, though it repairs indexes on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.log.batch_continuity import ends_well, proven_end
from kbroker.log.batch_scan import scan_headers
from kbroker.log.files import read_at
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchHeader, Record, compute_crc, read_records

_MAX_DECOMPRESSED = 1 << 30  # these batches have been accepted already; the bound only stops a broken file
_CHECKED_BYTES = 1 << 20  # of what a search passes over; the time index brings it nearer than that, but for odd times


class TimestampSearch:
    """The search in one log; it finds (offset, timestamp in ms, leader epoch), or None."""

    __slots__ = ("_closed", "_newest", "_segments")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._closed: list[Segment] = []
        self._newest: list[int] = []  # the largest timestamp up to each of the closed segments

    def first_at(self, timestamp: int, extent: LogExtent) -> tuple[int, int, int] | None:
        """Find the first record at or after `timestamp`; raises ApiError(CORRUPT_MESSAGE)."""
        start = extent.start_offset
        for index in range(self._first_candidate(timestamp), len(self._segments)):
            for header, batch in _batches_at(self._segments, extent, index, timestamp, start):
                for record in _records(batch):
                    if record.timestamp >= timestamp and record.offset >= start:
                        return record.offset, record.timestamp, header.leader_epoch
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

    def largest(self, extent: LogExtent) -> tuple[int, int, int] | None:
        """Find the first record that has the largest timestamp; raises ApiError(CORRUPT_MESSAGE)."""
        segments = self._segments
        index = max(range(len(segments)), key=lambda each: segments[each].max_timestamp)
        timestamp = segments[index].max_timestamp
        if timestamp < 0:
            return None
        for header, batch in _batches_at(segments, extent, index, timestamp, segments.bases[index]):
            for record in _records(batch):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp, header.leader_epoch
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


def _records(batch: bytes) -> list[Record]:
    try:
        return list(read_records(batch, max_bytes=_MAX_DECOMPRESSED))
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

"""The search for an offset by its timestamp (ListOffsets), which needs a look at single records.

Owns that search over the segments of a log. Never changes what a log holds, though it repairs indexes on the way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.log.batch_scan import scan_headers
from kbroker.log.files import read_at
from kbroker.log.header_chain import ends_well, proven_end
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchHeader, Record, compute_crc, read_records

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

_MAX_DECOMPRESSED = 1 << 30  # these batches have been accepted already; the bound only stops a broken file
_CHECKED_BYTES = 1 << 20  # of what a search passes over; the time index brings it nearer than that, but for odd times


def offset_for_timestamp(log: PartitionLog, timestamp: int) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record at or after `timestamp`, None without one."""
    start = log.log_start_offset
    for index in range(_first_candidate(log, timestamp), len(log.segments)):
        for header, batch in _batches_at(log, index, timestamp, start):
            for record in _records(batch):
                if record.timestamp >= timestamp and record.offset >= start:
                    return record.offset, record.timestamp, header.leader_epoch
    return None


def _first_candidate(log: PartitionLog, timestamp: int) -> int:
    """Return the index of the first segment that may hold `timestamp` or a later one.

    What the closed segments say together is remembered for as long as they are the same, and their ends are proven.
    """
    closed = log.segments[:-1]
    if log.newest_by_segment is None or log.newest_by_segment[0] != closed:
        largest = -1
        newest: list[int] = []
        for segment in closed:
            largest = max(largest, segment.max_timestamp)
            if segment.damaged or (segment.unproven and not segment.end_proven):
                return bisect_left(newest, timestamp)  # whoever comes to this one has to look
            newest.append(largest)
        log.newest_by_segment = (closed, newest)
    return bisect_left(log.newest_by_segment[1], timestamp)


def max_timestamp_offset(log: PartitionLog) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record that has the largest timestamp, None without one."""
    index = max(range(len(log.segments)), key=lambda each: log.segments[each].max_timestamp)
    timestamp = log.segments[index].max_timestamp
    if timestamp < 0:
        return None
    for header, batch in _batches_at(log, index, timestamp, log.bases[index]):
        for record in _records(batch):
            if record.timestamp >= timestamp:
                return record.offset, record.timestamp, header.leader_epoch
    return None


def _batches_at(
    log: PartitionLog, index: int, timestamp: int, start_offset: int
) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield (header, bytes) of a segment's batches from `start_offset` on that hold `timestamp` or a later one.

    What is passed over is part of the answer: what a start found is checked before it counts, as far as that is near.
    Raises ApiError(CORRUPT_MESSAGE).
    """
    segment = log.segments[index]
    anchor = segment.place_by_time(timestamp, start_offset)
    if segment.damaged or not ends_well(log, index):
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    if anchor is None:
        return
    fd, end, passed_over = segment.handle.fd, anchor, 0
    for place, header in scan_headers(fd, anchor, segment.size):
        end = place + header.size
        wanted = header.max_timestamp >= timestamp and header.last_offset >= start_offset
        if not wanted and (passed_over > _CHECKED_BYTES or place >= segment.found_size):
            continue
        batch = read_at(fd, header.size, place)
        passed_over += header.size
        if place < segment.found_size and compute_crc(batch) != header.crc:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE)
        if wanted:
            if proven_end(log, index, anchor, place, place) <= place:
                raise ApiError(ErrorCode.CORRUPT_MESSAGE)
            yield header, batch
    if end < segment.size:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)


def _records(batch: bytes) -> list[Record]:
    try:
        return list(read_records(batch, max_bytes=_MAX_DECOMPRESSED))
    except Malformed as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

"""Which bytes of which file answer a fetch.

Owns the choice: from the batch with the wanted offset on, no further than the reader may see, and nothing that the file
itself gainsays. Never reads a record, nor any byte but the headers between an index entry and the batch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from kbroker.log.header_chain import proven_end
from kbroker.log.log_slice import EMPTY_SLICE, LogSlice
from kbroker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


def read(log: PartitionLog, fetch_offset: int, max_bytes: int, upper_bound: int, *, min_one: bool) -> LogSlice:
    """Return batches from the one that holds `fetch_offset` on, none that reaches to `upper_bound`.

    At most `max_bytes`, of which the last batch may be cut off; nothing if that is less than the first batch, which
    `min_one` lets through whatever its size. Raises ApiError(OFFSET_OUT_OF_RANGE), or CORRUPT_MESSAGE where the
    file makes no sense from there on.
    """
    if not log.log_start_offset <= fetch_offset <= log.log_end_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if fetch_offset >= upper_bound:
        return EMPTY_SLICE
    segments = log.segments
    for index in range(max(bisect_right(log.bases, fetch_offset) - 1, 0), len(segments)):
        segment = segments[index]
        found = segment.find(fetch_offset)
        if found is None:
            if not _is_whole_from(log, index, fetch_offset):
                raise ApiError(ErrorCode.CORRUPT_MESSAGE)  # or the reader would go past what it cannot see
            continue
        position, first_size = found
        limit = max(max_bytes, first_size) if min_one else max_bytes
        if limit < first_size:
            return EMPTY_SLICE
        wanted = min(_end_position(log, index, upper_bound) - position, limit)
        if segment.unproven and fetch_offset < segment.tail_start:
            limit = min(limit, _proven_size(log, index, fetch_offset, position, limit))
        size = min(wanted, limit)
        if size <= 0:
            return EMPTY_SLICE
        piece = LogSlice(segment.handle, position, size, log, index, fetch_offset, upper_bound)
        piece.cut_short = size < wanted
        return piece
    return EMPTY_SLICE


def _is_whole_from(log: PartitionLog, index: int, offset: int) -> bool:
    segment = log.segments[index]
    if not segment.unproven or offset >= segment.tail_start:
        return segment.is_whole_from(offset)
    return proven_end(log, index, segment.place_before(offset), segment.size, segment.size) >= segment.size


def _proven_size(log: PartitionLog, index: int, offset: int, position: int, size: int) -> int:
    """Return how many bytes from `position` on may be served; raises ApiError(CORRUPT_MESSAGE) for none."""
    end = proven_end(log, index, log.segments[index].place_before(offset), position, position + size)
    if end <= position:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    return end - position


def _end_position(log: PartitionLog, index: int, upper_bound: int) -> int:
    segment = log.segments[index]
    if upper_bound >= log.log_end_offset:
        return segment.size
    if index + 1 < len(log.bases) and log.bases[index + 1] <= upper_bound:
        return segment.size
    found = segment.find(upper_bound)
    return segment.size if found is None else found[0]

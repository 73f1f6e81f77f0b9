"""Check the offsets and leader epochs of old batches, which no CRC covers, when they are first read.

Owns the comparison of a batch's base offset and leader epoch with the values of its neighbours. The check precedes any
response with data from a file that this process did not write. After a crash, recovery has already made the check.
After a clean stop, a start reads no batches, even of a large log. Therefore this module checks the requested data once.
Never checks CRCs, and never changes a file.

Batches never overlap, and leader epochs never decrease. A batch is proven when it satisfies both rules together with
the batch before it, and also together with the batch after it. Where offsets have no holes, only the right offset
satisfies both rules. Three faults stay undetected: a wrong offset within the hole beside a batch of a compacted log;
the other epoch in a batch at the border of two leader epochs; and too old an epoch in the first batch of a log.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.batch_scan import is_intact, read_header, scan_headers
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.log.segment.found_file import Link
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET
from kbroker.log.segment.segment import Segment
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import BatchHeader

# Checking a header takes 1 to 2 us while the event loop waits, so a read that needs more headers than this is
# shortened.
HEADERS_AT_ONCE: Final = 1000


def proven_end(segments: Segments, extent: LogExtent, index: int, anchor: int, position: int, end: int) -> int:
    """Return the position up to which the batches of segment `index` are proven, from `anchor` on.

    The result is the border of a batch. If the batch at `position` cannot be trusted, the result is at most `position`.
    Otherwise the result is near `end`, or at the limit of one call. `anchor` is the beginning of a batch at or before
    `position`; the batches between `anchor` and `position` are also checked.
    """
    segment = segments[index]
    if anchor >= segment.found.unproven:
        return max(end, position + 1)
    known = segment.found.proven_around(anchor)
    start, link = known or _before(segments, index, anchor)
    if start >= end and start > position:
        return start
    stop, link = _follow(segments, extent, index, start, position, end, link)
    if stop > (anchor if known is None else start):
        segment.found.prove(anchor, stop, link)
    return stop


def _before(segments: Segments, index: int, anchor: int) -> tuple[int, Link]:
    """Return the position from which to start, so that the batch at `anchor` is also checked with its predecessor."""
    segment = segments[index]
    if anchor == 0:
        return 0, Link(segment.base_offset, _last_epoch(segments[index - 1]) if index else -1)
    header = read_header(segment.handle, anchor, segment.size)
    earlier = segment.place_before(header.base_offset - 1) if header is not None else 0
    if 0 < earlier < anchor:
        return earlier, Link(None, -1)
    return 0, Link(segment.base_offset, -1)


def _last_epoch(segment: Segment) -> int:
    """Return the last leader epoch of a segment; -1 if its end cannot be read."""
    if not segment.size:
        return -1
    beyond = segment.base_offset + MAX_RELATIVE_OFFSET
    end, epoch = 0, -1
    for place, header in scan_headers(segment.handle, segment.place_before(beyond), segment.size):
        end, epoch = place + header.size, header.leader_epoch
    return epoch if end == segment.size else -1


def ends_well(segments: Segments, extent: LogExtent, index: int) -> bool:
    """Whether the end of segment `index` is intact and has the right offset and epoch."""
    segment = segments[index]
    if segment.found.unproven and not segment.found.end_proven:
        anchor = segment.place_before(segment.base_offset + MAX_RELATIVE_OFFSET)
        if proven_end(segments, extent, index, anchor, segment.size, segment.size) < segment.size:
            return False
        segment.found.prove_end()
    return True


def _follow(
    segments: Segments, extent: LogExtent, index: int, start: int, position: int, end: int, before: Link
) -> tuple[int, Link]:
    """Check the batches from `start`; return the end of the last proven batch, and the link expected there.

    The link is a found_file.Link. If two neighbouring batches contradict each other, the first batch is right if it
    follows its own predecessor without a hole. Otherwise either batch may be wrong.
    """
    segment = segments[index]
    proven, last, place = start, before, start
    sure = before.offset is not None
    limit = start
    for count, (place, header) in enumerate(scan_headers(segment.handle, start, segment.size)):
        if not _follows(header.base_offset, header.leader_epoch, last) or header.last_offset_delta < 0:
            return (place, last) if sure else (proven, before)
        proven, before = place, last
        if place > position and (place >= end or count >= HEADERS_AT_ONCE):
            return proven, before
        sure = header.base_offset == last.offset and header.leader_epoch == last.epoch
        last = Link(header.last_offset + 1, header.leader_epoch)
        limit = place + header.size
    if limit == segment.size and _ends_well(segments, extent, index, last):
        return limit, last
    return (limit, last) if sure and limit < segment.size else (proven, before)


def _ends_well(segments: Segments, extent: LogExtent, index: int, last: Link) -> bool:
    """Whether the end of a segment agrees with the next segment, or with the end of the log."""
    offset, epoch = extent.end_offset, extent.latest_epoch
    if index + 1 < len(segments):
        after = segments[index + 1]
        offset = after.base_offset
        header = read_header(after.handle, 0, after.size)
        if header is not None:
            epoch = header.leader_epoch
    if not _follows(offset, epoch if epoch >= 0 else last.epoch, last):
        return False
    return extent.may_have_holes or last.offset in (None, offset)


def _follows(offset: int, epoch: int, before: Link) -> bool:
    return epoch >= before.epoch and (before.offset is None or offset >= before.offset)


def is_whole_from(segments: Segments, extent: LogExtent, index: int, offset: int) -> bool:
    """Whether segment `index` can be read from `offset` to its end."""
    segment = segments[index]
    if not segment.found.unproven or offset >= segment.tail_start:
        return segment.is_whole_from(offset)
    return proven_end(segments, extent, index, segment.place_before(offset), segment.size, segment.size) >= segment.size


def proven_size(segments: Segments, extent: LogExtent, index: int, offset: int, position: int, size: int) -> int:
    """Return how many of `size` bytes from `position` may be sent.

    Raise ApiError(CORRUPT_MESSAGE) if none may be sent.
    """
    end = proven_end(segments, extent, index, segments[index].place_before(offset), position, position + size)
    if end <= position:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE)
    return min(end - position, size)


def batch_at(segments: Segments, extent: LogExtent, offset: int) -> tuple[Segment, int, BatchHeader] | None:
    """Return (segment, position, header) of the first batch that ends at or after `offset`, with a proven offset.

    Return None if there is no such batch, or if this batch cannot be trusted: its offset is not proven, or its CRC is
    wrong.
    """
    for index in range(segments.index_at(offset), len(segments)):
        segment = segments[index]
        found = segment.find(offset)
        if found is not None:
            position = found[0]
            proven = proven_end(segments, extent, index, segment.place_before(offset), position, position) > position
            header = read_header(segment.handle, position, segment.size) if proven else None
            intact = header is not None and is_intact(segment.handle, position, header)
            return (segment, position, header) if header is not None and intact else None
        if not ends_well(segments, extent, index):
            return None
    return None

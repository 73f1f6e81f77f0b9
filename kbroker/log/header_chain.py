"""What of a segment's file, as a start found it, has been seen to hang together.

Owns the check of the two numbers of a batch that no CRC covers, its base offset and its leader epoch, against the
batches around it, before anything of a file that this process did not write is served. After a crash recovery has
looked at all that; after a clean stop nothing is read at a start, whatever its size, so it is done here, once, for what
is asked for. Never looks at CRCs, and never changes a file.

Batches never overlap, and leader epochs never fall. A batch is proven when that holds for it and the one before it,
and for it and the one behind it: where there are no holes between offsets, no other number would fit. What this cannot
see: in a compacted log an offset that moves within the hole beside it, a batch between two leader epochs that
claims the other one of them, and the first batch of a log that claims an older epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.log.batch_scan import read_header, scan_headers
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog
    from kbroker.log.segment.segment import Segment

# A header is checked in 1 to 2 us, and the event loop waits: a read that meets more of them is cut short.
HEADERS_AT_ONCE: Final = 1000
_MOST_SPANS: Final = 256


class Link(NamedTuple):
    """What is known where a batch ends: the next offset, or None, and the leader epoch."""

    offset: int | None
    epoch: int


class Spans:
    """Proven stretches of one file, apart from each other and in order; positions in bytes."""

    __slots__ = ("_ends", "_links", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._links: list[Link] = []

    def around(self, position: int) -> tuple[int, Link] | None:
        """Return where the stretch that `position` lies in, or ends, ends, and what is known there."""
        slot = bisect_right(self._starts, position) - 1
        if slot < 0 or self._ends[slot] < position:
            return None
        return self._ends[slot], self._links[slot]

    def add(self, start: int, end: int, link: Link) -> None:
        """Note that `start` to `end` is proven. Of too many stretches the first half is forgotten."""
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] >= start:
            first -= 1
            start = self._starts[first]
        last = first
        while last < len(self._starts) and self._starts[last] <= end:
            if self._ends[last] > end:
                end, link = self._ends[last], self._links[last]
            last += 1
        self._starts[first:last], self._ends[first:last], self._links[first:last] = [start], [end], [link]
        if len(self._starts) > _MOST_SPANS:
            for kept in (self._starts, self._ends, self._links):
                del kept[: _MOST_SPANS // 2]


def proven_end(log: PartitionLog, index: int, anchor: int, position: int, end: int) -> int:
    """Return up to where the batches of segment `index` are proven, from `anchor` on: there a batch begins or all ends.

    That is not beyond `position` if the batch there is not to be trusted; otherwise it is near to `end`, or as far as
    one call goes. `anchor` is the beginning of a batch at or before `position`: what lies between counts, too.
    """
    segment = log.segments[index]
    if anchor >= segment.unproven:
        return max(end, position + 1)
    spans = segment.proven = segment.proven or Spans()
    known = spans.around(anchor)
    start, link = known or _before(log, index, anchor)
    if start >= end and start > position:
        return start
    stop, link = _follow(log, index, start, position, end, link)
    if stop > (anchor if known is None else start):
        spans.add(anchor, stop, link)
        whole = spans.around(0)
        if whole is not None and whole[0] >= segment.unproven:
            segment.unproven, segment.proven = 0, None
    return stop


def _before(log: PartitionLog, index: int, anchor: int) -> tuple[int, Link]:
    """Return from where to follow the batches so that the one at `anchor` is held against its predecessor, too."""
    segment = log.segments[index]
    if anchor == 0:
        return 0, Link(segment.base_offset, _last_epoch(log.segments[index - 1]) if index else -1)
    header = read_header(segment.handle.fd, anchor, segment.size)
    earlier = segment.place_before(header.base_offset - 1) if header is not None else 0
    if 0 < earlier < anchor:
        return earlier, Link(None, -1)
    return 0, Link(segment.base_offset, -1)


def _last_epoch(segment: Segment) -> int:
    """Return the leader epoch with which a segment ends, -1 if its end is not to be seen."""
    if not segment.size:
        return -1
    beyond = segment.base_offset + MAX_RELATIVE_OFFSET
    end, epoch = 0, -1
    for place, header in scan_headers(segment.handle.fd, segment.place_before(beyond), segment.size):
        end, epoch = place + header.size, header.leader_epoch
    return epoch if end == segment.size else -1


def ends_well(log: PartitionLog, index: int) -> bool:
    """Whether the end of segment `index` is there, and where it has to be."""
    segment = log.segments[index]
    if segment.unproven and not segment.end_proven:
        anchor = segment.place_before(segment.base_offset + MAX_RELATIVE_OFFSET)
        segment.end_proven = proven_end(log, index, anchor, segment.size, segment.size) >= segment.size
        return segment.end_proven
    return True


def _follow(log: PartitionLog, index: int, start: int, position: int, end: int, before: Link) -> tuple[int, Link]:
    """Follow the batches from `start` on; return where the last proven one ends, and what is known there.

    Where two neighbours contradict each other, the first is right if it follows on from its own predecessor without a
    hole; else nobody knows which of the two is.
    """
    segment = log.segments[index]
    proven, last, place = start, before, start
    sure = before.offset is not None
    limit = start
    for count, (place, header) in enumerate(scan_headers(segment.handle.fd, start, segment.size)):
        if not _follows(header.base_offset, header.leader_epoch, last) or header.last_offset_delta < 0:
            return (place, last) if sure else (proven, before)
        proven, before = place, last
        if place > position and (place >= end or count >= HEADERS_AT_ONCE):
            return proven, before
        sure = header.base_offset == last.offset and header.leader_epoch == last.epoch
        last = Link(header.last_offset + 1, header.leader_epoch)
        limit = place + header.size
    if limit == segment.size and _ends_well(log, index, last):
        return limit, last
    return (limit, last) if sure and limit < segment.size else (proven, before)


def _ends_well(log: PartitionLog, index: int, last: Link) -> bool:
    """Whether the next segment, or the end of the log, follows on from what is known at the end of a segment."""
    offset, epoch = log.log_end_offset, log.leader_epochs.latest
    if index + 1 < len(log.bases):
        after = log.segments[index + 1]
        offset = after.base_offset
        header = read_header(after.handle.fd, 0, after.size)
        if header is not None:
            epoch = header.leader_epoch
    if not _follows(offset, epoch if epoch >= 0 else last.epoch, last):
        return False
    return log.may_have_holes or last.offset in (None, offset)


def _follows(offset: int, epoch: int, before: Link) -> bool:
    return epoch >= before.epoch and (before.offset is None or offset >= before.offset)

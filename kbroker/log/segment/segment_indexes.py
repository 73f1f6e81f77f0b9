"""How far the indexes of a segment that is opened may be believed.

Owns holding their last entries against the batches. Never changes an index or the log: segment.py empties what is not
true and completes what is.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.batch_scan import is_intact, read_header, scan_headers
from kbroker.log.segment.index_files import OffsetIndex, TimeIndex


class Trust(NamedTuple):
    """What came of it: `start` is the position behind which the indexes say nothing."""

    start: int
    newest: tuple[int, int] | None
    """The largest timestamp up to there, and its offset; None if the indexes are not true, or say nothing."""
    damaged: bool = False
    """Whether a batch was found that is not as its CRC says."""


NO_TRUST = Trust(0, None)


def look(offsets: OffsetIndex, times: TimeIndex, fd: int, size: int, base_offset: int) -> Trust:
    """Hold the last entries against the log file, which has `size` bytes."""
    last, newest = offsets.last, times.last
    if newest is None or not (offsets.looks_sane(size) and times.looks_sane()):
        return NO_TRUST
    # The offset index of a small segment has no entry.
    if last is not None and not _begins_at(fd, size, base_offset, last):
        return NO_TRUST
    nearest = offsets.lookup(newest[1])
    for position, header in scan_headers(fd, nearest[1] if nearest else 0, size):
        if header.last_offset < newest[1]:
            continue
        if header.base_offset <= newest[1] and header.max_timestamp == newest[0]:
            return Trust(min(position, last[1] if last else 0), newest)
        return Trust(0, None, not is_intact(fd, position, header))
    return NO_TRUST


def _begins_at(fd: int, size: int, base_offset: int, entry: tuple[int, int]) -> bool:
    """Whether a batch that may hold the entry's offset begins at its position."""
    header = read_header(fd, entry[1], size)
    return header is not None and base_offset <= header.base_offset <= entry[0]

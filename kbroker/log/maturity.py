"""The mature end of a log: the offset up to which consumers may read a topic with `delivery.delay.ms`.

Owns this offset, and the append time of the batch at this offset. Every record before this offset was appended at least
one delay ago. Never hides a record from followers, never sets a timer and never waits: it returns the time to wait.

A batch's append time is its timestamp, because such a topic requires LogAppendTime. So a restart or another replica
finds the same end. A batch with a producer's timestamps was appended before the topic had a delay, so it is mature. The
end never moves back while the log is open, even if the delay becomes longer.

A batch with a timestamp of the future was appended while a clock was wrong. Its delay counts from the moment at which
its timestamp is noticed, so that a wrong clock holds records for one delay at most.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final
from weakref import ref

from kbroker.log.batch_scan import scan_headers
from kbroker.log.log_segments import Segments
from kbroker.log.segment.segment import Segment
from kbroker.protocol.records import BatchHeader

AT_ONCE: Final = 256
"""The maximum number of batches that one step examines, which takes about 0.3 ms."""
_FIRST: Final = 32
"""The number of batches that a step examines one by one before it uses the time index."""
_SEGMENT: Final = 16
"""The cost of the first use of a segment's indexes, as a number of batches: the first use opens three files."""
_LONG_AGO: Final = -(2**64)


def _no_segment() -> Segment | None:
    return None


_UNKNOWN: Final[tuple[Callable[[], Segment | None], int, int]] = _no_segment, -1, 0
"""A segment, an offset, and a position in that segment. The first batch that ends after the offset begins there.

The position is kept, because a search by an index with few entries would begin far before the offset.
"""


class Maturity:
    """The mature end of one log. Offsets are absolute, times in ms since the epoch."""

    __slots__ = ("_future_end", "_held_ms", "_known", "_noticed_ms", "_segments", "_unreadable_end", "end", "is_behind")

    def __init__(self, segments: Segments, end: int) -> None:
        """Create the state; consumers may already read all records before `end`."""
        self._segments = segments
        self.end = end
        """The mature end after the last step."""
        self.is_behind = True
        """Whether the next step may find further mature batches even if the time does not advance."""
        self._held_ms: int | None = None  # the append time of the batch at `end`, if it was too young
        self._unreadable_end = -1  # the offset after a damaged batch's first offset, if the end was moved there
        self._future_end = -1  # some batches before this offset have timestamps in the future, as seen at `_noticed_ms`
        self._noticed_ms = 0
        self._known = _UNKNOWN

    def advance(self, log_start: int, log_end: int, delay_ms: int, now_ms: int) -> int:
        """Examine further batches, in at most one step, and return the mature end. Raises OSError."""
        if self.end < log_start:
            self.end, self._held_ms = log_start, None
        youngest = now_ms - delay_ms
        if self._held_ms is not None and self._held_ms > youngest:
            return self.end
        self._held_ms = None
        self.is_behind = self.end < log_end
        if self.is_behind:
            self._examine(log_end, youngest, now_ms)
        return self.end

    def wait_ms(self, delay_ms: int, now_ms: int) -> int | None:
        """Return the ms after which the next batch is mature, or None if no batch has to wait."""
        if self.is_behind:
            return 0
        return None if self._held_ms is None else max(self._held_ms + delay_ms - now_ms, 0)

    def cut(self, log_end: int) -> None:
        """Forget the batches from `log_end` on, because a truncation has removed them."""
        self._unreadable_end, self._future_end, self._known = -1, min(self._future_end, log_end), _UNKNOWN
        if self.end >= log_end:
            self.end, self._held_ms, self.is_behind = log_end, None, True

    def _examine(self, log_end: int, youngest: int, now_ms: int) -> None:
        examined = 0
        while examined < AT_ONCE and self.end < log_end:
            index = self._segments.index_at(self.end)
            segment, beyond = self._segments[index], self._segments.end_of(index, log_end)
            most = AT_ONCE - examined if examined else _FIRST
            start, count = self._start_in(segment), 0
            if start is None:  # compaction has left a hole, or the scan for the offset meets a damaged batch
                is_damaged = not segment.is_whole_from(self.end)
            else:
                place: int | None = start
                if examined:  # there are many batches: skip those that are old according to the time index
                    place = segment.place_by_time(youngest, self.end)
                    place = None if place is None else max(place, start)
                stopped = segment.size
                if place is not None:
                    count, stopped = self._walk(segment, place, most, beyond, log_end, youngest, now_ms)
                is_damaged = count < most and stopped < segment.size
            if is_damaged and self._held_ms is None:
                self._pass_damage(segment, beyond, log_end, youngest, now_ms)
            if self._held_ms is not None:
                break
            if count < most and not is_damaged:
                self.end = beyond
            examined += count + _SEGMENT
        self.is_behind = self._held_ms is None and self.end < log_end

    def _start_in(self, segment: Segment) -> int | None:
        """Return the position of the first batch that ends after the mature end; None if there is no such batch."""
        known, offset, position = self._known
        if offset == self.end and known() is segment and position < segment.size:
            return position
        found = segment.find(self.end)
        return None if found is None else found[0]

    def _pass_damage(self, segment: Segment, beyond: int, log_end: int, youngest: int, now_ms: int) -> None:
        """Move the end past the first offset of a damaged batch; at the second call, move it past the segment.

        A consumer at the first offset must get an error instead of a wait without end. The rest of the segment waits
        until its last batch is old enough, because the batches after the damage cannot be found one by one.
        """
        if self.end != self._unreadable_end:
            self.end += 1
            self._unreadable_end = self.end
            return
        appended = self._noticed(segment.max_timestamp, beyond - 1, log_end, now_ms)
        if appended > youngest:
            self._held_ms = appended
        else:
            self.end = beyond

    def _walk(
        self, segment: Segment, place: int, most: int, beyond: int, log_end: int, youngest: int, now_ms: int
    ) -> tuple[int, int]:
        """Advance the end past the mature batches of a segment, beginning at a position.

        The segment's offsets are before `beyond`. Return the number of examined batches, and the position after them.
        """
        count = 0
        for position, header in islice(scan_headers(segment.handle, place, segment.size), most):
            if not self.end <= header.last_offset < beyond:
                return count, position  # no CRC covers a batch's offset: this offset is damaged
            count += 1
            place = position + header.size
            appended = self._append_time(header, log_end, now_ms)
            if appended > youngest:
                self._held_ms = appended
                self.end = max(self.end, header.base_offset)
                self._known = ref(segment), self.end, position
                return count, place
            self.end = header.last_offset + 1
        self._known = ref(segment), self.end, place
        return count, place

    def _append_time(self, header: BatchHeader, log_end: int, now_ms: int) -> int:
        """Return the append time of a batch, or `_LONG_AGO` for a batch that never waits."""
        if not header.timestamp_type or header.is_control:
            return _LONG_AGO
        return self._noticed(header.max_timestamp, header.last_offset, log_end, now_ms)

    def _noticed(self, timestamp: int, last_offset: int, log_end: int, now_ms: int) -> int:
        """Return a timestamp or, if the timestamp is in the future, the time at which it was noticed."""
        if timestamp <= now_ms:
            return timestamp
        if last_offset >= self._future_end:
            self._future_end, self._noticed_ms = log_end, now_ms
        return min(timestamp, self._noticed_ms)

"""A share partition: the records of one partition as one share group consumes them (SharePartition of Apache Kafka).

Owns the acquisition of records: it chooses the records that a member gets among the records that were read from the
log. transitions.py handles their later changes. Never does I/O, never reads a clock, and never decodes a record: the
caller passes the offsets of the batches that were read.

Records that are read for the first time become batches in flight. By default these follow the batches of the log, so
that a client gets each batch of the log as a unit. In the mode record_limit (KIP-1206) no more records are acquired
than the request allows, and the rest of a batch stays available. A batch that was delivered often is delivered in
smaller and smaller parts (Limits.throttled_from).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.long_work import turn
from kbroker.share_partition.delivery_state import AT_ONCE
from kbroker.share_partition.runs import GAP, HEAD, HOLE, STATE, TRACKED, Run
from kbroker.share_partition.states import Acquired, Limits, RecordState, Span
from kbroker.share_partition.transitions import Transitions

_ACQUIRED: Final = int(RecordState.ACQUIRED)
_AVAILABLE: Final = int(RecordState.AVAILABLE)


class Wish(NamedTuple):
    """The request of a fetch: at most `max_records`; new batches of at least `batch_size` records if possible."""

    member: str
    max_records: int
    batch_size: int = 500
    record_limit: bool = False
    """Whether `max_records` is exact. If not, the last batch may exceed it."""


class _Acquisition:
    """One acquisition in progress."""

    __slots__ = ("deadline", "got", "is_over", "last", "left", "limits", "read", "wish")

    def __init__(self, wish: Wish, read: Sequence[Span], left: int, last: int, limits: Limits, deadline: float) -> None:
        self.wish = wish
        self.read = read
        self.left = left
        self.last = last
        self.limits = limits
        self.deadline = deadline
        self.got: list[Acquired] = []
        self.is_over = False
        """Whether the acquisition ends although there is room for more records."""


class SharePartition(Transitions):
    """The state of a share partition and all its changes. All times are in ms of the monotonic clock."""

    __slots__ = ()

    def most(self, wanted: int, fetch_offset: int, limits: Limits) -> int:
        """Return the maximum number of records that an acquisition from `fetch_offset` may get.

        The number is at most `wanted`, and at most the room within the limit of locks. If there is no room, records
        that were in flight before can still be acquired again.
        """
        room = limits.record_locks - self.in_flight
        return min(wanted, room if room > 0 else self.end - fetch_offset)

    def has_enough(self, last: int, wanted: int, limits: Limits) -> bool:
        """Whether reading may stop at an offset: an acquisition of `wanted` records would not need later offsets."""
        runs, found = self.runs, 0
        if last >= runs.end - 1 and self.in_flight >= limits.record_locks:
            return True
        if last >= runs.end:
            found = last + 1 - runs.end
        elif last >= runs.start:
            head = runs.next_head(runs.index(last))
            if last + 1 != (runs.first[head] if head < len(runs) else runs.end):
                return False  # the complete batch is acquired together
        index = runs.next_available()
        while index >= 0 and found < wanted and runs.first[index] <= last:
            found += min(runs.last(index), last) - runs.first[index] + 1
            index = runs.next_available(index + 1)
        return found >= wanted

    async def acquire(
        self, wish: Wish, fetch_offset: int, read: Sequence[Span], limits: Limits, now_ms: float
    ) -> list[Acquired]:
        """Acquire records of the batches that were `read` from `fetch_offset` on; return them in order.

        Only one acquisition may be in progress at a time. If the limit of record locks is reached, no records after
        `end` are acquired.
        """
        if not read or wish.max_records <= 0 or read[-1].last_offset < self.start:
            return []
        last, left = read[-1].last_offset, self.most(wish.max_records, fetch_offset, limits)
        if self.in_flight >= limits.record_locks:
            last = min(last, self.end - 1)
        if left <= 0:
            return []
        base = read[0].first_offset
        await self.archive_missing(fetch_offset, base - 1)
        work = _Acquisition(wish, read, left, last, limits, now_ms + limits.lock_ms)
        at = max(base, self.start)
        if at < self.end:
            at = self.runs.first[self.runs.head(self.runs.index(at))]
        while at <= last and at < self.end and work.left > 0 and not work.is_over:
            at = await self._acquire_known(work, at)
            await turn
            at = max(at, self.start)
        if work.left > 0 and not work.is_over and max(self.end, base) <= last:
            await self._acquire_new(work, max(self.end, base), last, is_gap=False)
        self.advance()
        return work.got

    # -- records that were in flight before

    async def _acquire_known(self, work: _Acquisition, at: int) -> int:
        """Acquire records of the in-flight batch that contains an offset. Return the offset of the next batch."""
        runs, wish = self.runs, work.wish
        index = runs.index(at)
        behind = runs.next_head(index)
        end = runs.first[behind] if behind < len(runs) else runs.end
        state = runs.what[index] & STATE
        if state == GAP:
            first = max(at, work.read[0].first_offset)
            if first <= min(end - 1, work.last):
                await self._acquire_new(work, first, min(end - 1, work.last), is_gap=True)
            return end
        if state == HOLE:
            return end
        is_full = at >= work.read[0].first_offset and end - 1 <= work.last
        low, high = max(at, work.read[0].first_offset), min(end - 1, work.last)
        highest = runs.highest_count(runs.index(low), runs.index(high) + 1)
        if highest < 0:
            return end
        is_throttled = highest >= work.limits.throttled_from
        if is_throttled and work.got:
            work.is_over = True
            return end
        has_one_state = behind == index + 1 and not runs.what[index] & TRACKED
        if has_one_state and is_full and not is_throttled and not (wish.record_limit and end - at > work.left):
            self._take(work, index)
            work.got.append(Acquired(at, end - 1, runs.count[index]))
            work.left -= end - at
            return end
        taken = await self._acquire_part(work, at, end)
        work.left -= taken
        work.is_over = is_throttled and taken > 0
        return end

    async def _acquire_part(self, work: _Acquisition, at: int, end: int) -> int:
        """Acquire available records of the batch from `at` to `end`, one after the other.

        Return the number of acquired records.
        """
        runs, limits, limit = self.runs, work.limits, work.limits.delivery_count
        size, taken, most = end - at + (runs.cut if at == runs.start else 0), 0, -1
        runs.what[runs.index(at)] |= TRACKED
        offset = max(at, work.read[0].first_offset)
        last = min(end - 1, work.last)
        parts: list[Acquired] = []
        steps = 0
        while offset <= last:
            index = runs.next_available(runs.index(max(offset, runs.start)))
            first = max(runs.first[index], offset) if index >= 0 else end
            if first > last:
                break
            count = runs.count[index]
            is_last_try = limit > 2 and count == limit - 1
            if is_last_try and taken:
                break
            if count >= limits.throttled_from and most < 0:
                most = max(1, size >> (count - limits.throttled_from + 1))
            number = 1 if is_last_try else min(runs.last(index), last) - first + 1
            if work.wish.record_limit:
                number = min(number, work.left - taken)
            if taken < most:
                number = min(number, most - taken)
            runs.split(first)
            if first + number < runs.end:
                runs.split(first + number)
            self._take(work, runs.index(first))
            taken += number
            _add(parts, Acquired(first, first + number - 1, count + 1))
            if is_last_try or taken == most or (work.wish.record_limit and taken == work.left):
                break
            offset = first + number
            steps += 1
            if steps % AT_ONCE == 0:
                await turn
        work.got += parts
        return taken

    def _take(self, work: _Acquisition, index: int) -> None:
        """Acquire one run."""
        runs = self.runs
        what = _ACQUIRED | runs.what[index] & (HEAD | TRACKED)
        runs.set(index, what, runs.count[index] + 1, runs.owner_of(work.wish.member), work.deadline)
        self.next_deadline = min(self.next_deadline, work.deadline)

    # -- records that are read the first time

    async def _acquire_new(self, work: _Acquisition, first: int, last: int, *, is_gap: bool) -> None:
        """Acquire offsets without known state, after `end` or in a gap, as new batches in flight."""
        bound = last
        if work.left < last - first + 1:
            last = _end_of_batch(work.read, first + work.left - 1)
            last = min(last, bound) if is_gap else last
        if first > last:
            return
        if work.wish.record_limit and last - first + 1 > work.left:
            self._acquire_first(work, first, last, is_gap=is_gap)
            return
        size = last - first + 1 if work.wish.record_limit else max(work.wish.batch_size, 1)
        for step, (begin, end) in enumerate(_divided(work.read, first, last, size), 1):
            if begin < self.start or (not is_gap and begin not in (first, self.end)):
                work.is_over = True  # the start of the log has moved past the records that were read
                return
            self._place(work, [Run(begin, _ACQUIRED | HEAD, 1)], end, is_gap=is_gap)
            work.got.append(Acquired(begin, end, 1))
            work.left -= end - begin + 1
            if step % AT_ONCE == 0:
                await turn

    def _acquire_first(self, work: _Acquisition, first: int, last: int, *, is_gap: bool) -> None:
        """Acquire as many new records as there is room for; the rest of their batch stays available."""
        behind = first + work.left
        new = [Run(first, _ACQUIRED | HEAD | TRACKED, 1), Run(behind, _AVAILABLE | TRACKED, 0)]
        self._place(work, new, last, is_gap=is_gap)
        work.got.append(Acquired(first, behind - 1, 1))
        work.left = 0

    def _place(self, work: _Acquisition, new: list[Run], last: int, *, is_gap: bool) -> None:
        """Add a new batch in flight, whose first run is acquired."""
        runs, first = self.runs, new[0].first
        new[0] = new[0]._replace(owner=runs.owner_of(work.wish.member), deadline=work.deadline)
        self.next_deadline = min(self.next_deadline, work.deadline)
        if is_gap:
            self.change(first, last, lambda _run, _low, _high: new)
            return
        if not runs:
            runs.drop_below(first)
        elif first > runs.end:
            runs.append(first - 1, Run(runs.end, HOLE | HEAD, 0))
        for run, following in zip(new, [*new[1:], None], strict=True):
            runs.append(last if following is None else following.first - 1, run)


def _add(parts: list[Acquired], more: Acquired) -> None:
    """Add records to the acquired records of the same batch; join neighbours with the same delivery count."""
    if parts and parts[-1].last_offset + 1 == more.first_offset and parts[-1].delivery_count == more.delivery_count:
        parts[-1] = parts[-1]._replace(last_offset=more.last_offset)
    else:
        parts.append(more)


def _end_of_batch(read: Sequence[Span], offset: int) -> int:
    """Return the last offset of the batch that contains an offset, or the offset itself if no batch contains it."""
    for span in read:
        if span.first_offset <= offset <= span.last_offset:
            return span.last_offset
    return offset


def _divided(read: Sequence[Span], first: int, last: int, size: int) -> Iterator[Span]:
    """Divide new records into batches of at least `size`. Each batch ends where a batch of the log ends."""
    begin = first
    for span in read:
        base = span.first_offset
        if base > last:
            break
        if base - begin >= size:
            yield Span(begin, base - 1)
            begin = base
    yield Span(begin, last)

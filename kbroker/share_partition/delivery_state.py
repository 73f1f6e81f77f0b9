"""The state of a share partition: the records in flight, and the offsets where they begin and end.

Owns the runs, the start and the end offset, the next offset to fetch, and the number of records that are done.
transitions.py has the members' actions on records, share_partition.py the acquisition of records. Never does I/O.

`start` is the first offset that is not done; no offset below it is ever delivered again. `end` is the offset after the
last record that was acquired at least once, or that the stored state contains. Records between `start` and `end` are in
flight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_partition.runs import (
    DELAYED,
    FIXED,
    GAP,
    HEAD,
    HOLE,
    NO_LOCK,
    PENDING,
    STATE,
    TRACKED,
    Run,
    Runs,
)
from kbroker.share_partition.states import Limits, RecordState, Span

AT_ONCE: Final = 64
"""The maximum number of runs that change in one turn of the event loop. So many changes take about 0.5 ms."""
_TERMINAL: Final = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
_MOST_DELIVERIES: Final = 1000
_AVAILABLE: Final = int(RecordState.AVAILABLE)

Change = Callable[[Run, int, int], "Run | list[Run] | None"]
"""Returns the new runs for a part of a run, which is given by its first and last offset.

The result is one run, or several runs that begin at the first offset. The result None leaves the part unchanged.
"""


class DeliveryState:
    """The state of all records of one share partition."""

    __slots__ = ("complete_count", "next_deadline", "runs")

    def __init__(self, start_offset: int) -> None:
        self.runs = Runs(start_offset)
        self.complete_count = 0
        """The number of acknowledged or archived records between `start` and `end` (delivery complete count)."""
        self.next_deadline = NO_LOCK
        """No lock or delay ends before this time of the monotonic clock, in ms."""

    # -- loading

    async def load(self, batches: Sequence[tuple[int, int, int, int]]) -> None:
        """Load stored state (StateBatch), before any other call. Raises ApiError if the state contradicts itself.

        Locks and delays are not stored, so a record that was acquired or delayed is available again. If a record was
        being written to a dead letter topic, it is unknown whether the topic contains the record
        (dead_letters.stored_letters).
        """
        runs = self.runs
        for batch in batches:
            first, last, state, count = batch
            if first < runs.end or last < first or not 0 <= state <= RecordState.ARCHIVED:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"stored state of a share partition: {batch}")
            if first > runs.end:
                runs.append(first - 1, Run(runs.end, GAP | HEAD, 0))
            if state == RecordState.ACQUIRED:
                state = RecordState.AVAILABLE
            runs.append(last, Run(first, state | HEAD, min(max(count, 0), _MOST_DELIVERIES)))
            if state in _TERMINAL:
                self.complete_count += last - first + 1
            await turn
        self.advance()

    # -- offsets

    @property
    def start(self) -> int:
        return self.runs.start

    @property
    def end(self) -> int:
        return self.runs.end

    @property
    def in_flight(self) -> int:
        """The number of records between `start` and `end`, whether done or not."""
        return self.runs.end - self.runs.start

    def first_open(self) -> tuple[int, int] | None:
        """Return the offset and the number of deliveries of the first record that is not done; None if all are done."""
        runs = self.runs
        index = runs.first_unsettled()
        return None if index < 0 else (runs.first[index], runs.count[index])

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that may be acquired."""
        runs = self.runs
        index = runs.next_available()
        return runs.end if index < 0 else runs.first[index]

    def can_acquire(self, limits: Limits) -> bool:
        """Whether more records may be acquired. Records after `end` need room within the limit of locks."""
        return self.in_flight < limits.record_locks or self.runs.next_available() >= 0

    def advance(self) -> bool:
        """Move `start` past all done records at the beginning. Return whether `start` has moved."""
        runs = self.runs
        index = runs.first_unsettled()
        offset = runs.end if index < 0 else runs.first[index]
        if offset <= runs.start:
            return False
        self.complete_count -= offset - runs.start - runs.holes_below(offset)
        runs.drop_below(offset)
        return True

    def log_start_moved(self, offset: int) -> bool:
        """Forget the records before the log's start offset; return whether that has changed anything."""
        runs = self.runs
        if offset <= runs.start:
            return False
        if offset >= runs.end:
            self.complete_count = 0
        else:
            for index in range(runs.index(offset) + 1):
                run = runs.first[index]
                if runs.what[index] & STATE in _TERMINAL and run < offset:
                    self.complete_count -= min(runs.last(index) + 1, offset) - run
        runs.drop_below(offset)
        return True

    # -- changes

    def change(self, first: int, last: int, how: Change) -> int:
        """Change a range of offsets, at most AT_ONCE of its runs; return the offset at which to continue.

        The range is complete if the result is greater than `last`. Offsets below `start` and after `end` are skipped.
        If `how` raises, the changes made before remain.
        """
        runs = self.runs
        first = max(first, runs.start)
        if first > last or first >= runs.end:
            return last + 1
        begin = index = runs.index(first)
        stop = min(begin + AT_ONCE, len(runs))
        new: list[Run] = []
        has_changed = False
        while index < stop:
            run, behind = runs.at(index), runs.last(index)
            low, high = max(run.first, first), min(behind, last)
            if low > high:
                break
            try:
                changed = how(run, low, high)
            except ApiError:
                if has_changed:
                    runs.join_into(begin, index, new)
                raise
            if changed is None:
                new.append(run)
            else:
                has_changed = True
                _put_part(new, run, behind, changed, low, high)
            index += 1
        following = min(runs.first[index], last + 1) if index < len(runs) else last + 1
        if has_changed:
            runs.join_into(begin, index, new)
        return following

    async def change_all(self, first: int, last: int, how: Change) -> None:
        """Change all records from offset `first` to offset `last`, in pieces."""
        while first <= last:
            first = self.change(first, last, how)
            await turn

    # -- records that nobody gets

    async def archive_missing(self, first: int, last: int) -> None:
        """Archive the available offsets of a range from which compaction has removed all records."""
        await self.change_all(first, last, self._without_record)

    def _without_record(self, run: Run, low: int, high: int) -> Run | None:
        if run.what & STATE == GAP:
            return run._replace(what=HOLE | run.what & HEAD)
        if run.what & STATE not in (_AVAILABLE, DELAYED):
            return None
        return self._archived(run, low, high)

    async def archive_useless(self, spans: Sequence[Span]) -> None:
        """Archive the acquired and available offsets of aborted transactions, and of batches without records.

        The change is not stored, because each reader detects these offsets.
        """
        for span in spans:
            await self.change_all(span.first_offset, span.last_offset, self._useless)
        self.advance()

    def _useless(self, run: Run, low: int, high: int) -> Run | None:
        is_acquired, is_free = run.what & STATE == RecordState.ACQUIRED, run.what & (STATE | PENDING) == _AVAILABLE
        return self._archived(run, low, high) if is_acquired or is_free else None

    def _archived(self, run: Run, low: int, high: int) -> Run:
        self.complete_count += high - low + 1
        pending = run.what & PENDING
        what = RecordState.ARCHIVED | run.what & (HEAD | TRACKED) | (pending | FIXED if pending else 0)
        return run._replace(what=what, owner=None, deadline=NO_LOCK)


def _put_part(new: list[Run], run: Run, behind: int, changed: Run | list[Run], low: int, high: int) -> None:
    """Add the (up to three) parts of a run of which one part has changed."""
    parts = [changed._replace(first=low)] if isinstance(changed, Run) else changed
    is_whole = low == run.first and high == behind
    if run.what & STATE == GAP:  # a gap and its parts belong to no batch
        new += [run] if low > run.first else []
        new += parts
        new += [run._replace(first=high + 1)] if high < behind else []
        return
    if is_whole and len(parts) == 1:
        new += parts
        return
    what = run.what | TRACKED
    if low > run.first:
        new.append(run._replace(what=what))
        what &= ~HEAD
    for part in parts:
        new.append(part._replace(what=part.what & ~HEAD | what & HEAD | TRACKED))
        what &= ~HEAD
    if high < behind:
        new.append(run._replace(first=high + 1, what=what))

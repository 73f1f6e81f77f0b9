"""One hosted partition of a schedule topic: its index follows the log, and its leader fires the due records.

Owns the order of the steps:

    record -> committed -> replayed into the index -> due -> INTENT in the log -> committed -> replayed
           -> the batch goes to the target, until its outcome is known -> DONE in the log -> committed -> replayed

After a crash, or at another leader, every step is repeated from the log and has the same effect: an intent fixes the
batch with its producer id and sequence, so the target appends the batch once. A leader decides only after it has
replayed all marks that were in its log when it began to lead (leading.py). A replaced leader cannot append an intent,
so it sends nothing new. The index of a follower also follows the log, so that after a fail-over the next leader
continues immediately. Never decides the meaning of a record (kbroker/schedules/), and never opens a connection. Times
are ms since 1970 (UTC).
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import Final

from kbroker.log.append_info import COORDINATOR, AppendError
from kbroker.long_work import in_slices, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError
from kbroker.schedules.marks import Begin, Mark, Pause, build_marks
from kbroker.scheduling.firing import Source
from kbroker.scheduling.index import Cut, Event, Index, Positions, lacks_resources, open_index, remove_index
from kbroker.scheduling.lanes import Times
from kbroker.scheduling.leading import Counts, Leading
from kbroker.scheduling.reading import Context, first_toggle, read_events, read_marks_ahead
from kbroker.scheduling.shared import Shared

log = logging.getLogger(__name__)
_LONGEST_WAIT_S: Final = 60.0
_FIRST_PAUSE_S, _MOST_PAUSE_S, _MOST_FAILURES = 1.0, 60.0, 10
"""The pauses in seconds after failures in a row, as with a full disk. Each pause is twice as long as the last pause."""
_COUNT_PAUSES: Final = 20
"""The pause after a count of the pending records, as a multiple of the count's duration."""


class ScheduledPartition:
    """Follows one partition from `begin` to `close`. The partition notifies it as a `Waiter`."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.counts = Counts()
        self._shared = shared
        self._log = partition.log
        self._source = Source(partition.topic, partition.index, partition.log)
        self._index: Index | None = None
        self._at = Positions()
        self._context: Context | None = None
        self._times = Times()
        self._leading: Leading | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._marked: tuple[bool, str] | None = None
        self._marked_in = -1
        """The leader epoch in which this broker wrote `_marked`; other leaders may have written marks later."""
        self._was_enabled = True
        self._is_change = False
        self._is_closed = False
        self._has_changed = True
        self._count_after = 0.0
        self._failures = 0
        """The number of failures in a row."""
        self._error = ""

    # -- lifecycle

    def begin(self, *, is_change: bool) -> None:
        """Start to follow. `is_change` is whether the topic has just become a schedule topic."""
        self._is_change = is_change
        self._was_enabled = self._wanted()[0]
        self._log.is_unmarked = True
        self.partition.waiters[self] = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.poke()

    async def close(self, *, clean: bool) -> None:
        """Stop. With `clean`, the complete index is on disk afterwards, so that it is trusted after another boot."""
        self._is_closed = True
        self.partition.waiters.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop(clean=clean)

    @property
    def is_closed(self) -> bool:
        """Whether this object has stopped following its partition."""
        return self._is_closed

    def reconfigured(self) -> None:
        """Record that the topic's configs may have changed.

        If a config of schedules has changed, the leader writes a mark to the log before the next record.
        """
        wanted = self._wanted()
        if self._marked != wanted:
            if wanted[0] != self._was_enabled:
                self._is_change = wanted[0]
            self._was_enabled = wanted[0]
            self.partition.log.is_unmarked = True
        self.poke()

    def poke(self) -> None:
        """Check again, because the log, the leadership or the time has changed."""
        if self.partition.log.is_unmarked and self.partition.leading:
            self._mark_state()
        self._wake.set()

    def tick(self) -> None:
        """Check the clock again, because it may have jumped, and check for targets that exist again."""
        if self._leading is not None:
            self._leading.look_again()
        if self.partition.log.is_unmarked or self._is_due:
            self.poke()

    # -- the mark that says whether records are schedules

    def _wanted(self) -> tuple[bool, str]:
        config = self.partition.log.config
        return config.schedule_enable, config.schedule_target_topic

    def _mark_state(self) -> None:
        """Write the mark that states whether the following records are schedules.

        Until the mark is written, clients' records are refused.
        """
        is_enabled, target = self._wanted()
        # A replica that saw the change may begin to lead long after another leader has written the mark.
        before = self._target_before()
        mark = Begin(target, self._is_change and not self._at.active, before) if is_enabled else Pause(before)
        records = self.partition.log
        records.is_unmarked = False  # set first, because the append calls `poke`
        if not self._append([mark], acks=1):
            records.is_unmarked = True
            return
        self._marked, self._marked_in = (is_enabled, target), self.partition.leader_epoch
        self._is_change = False

    def _target_before(self) -> str | None:
        """Return the default target of the last records in the log; None if it is not known."""
        if self._marked is not None and self._marked_in == self.partition.leader_epoch:
            return self._marked[1]
        is_known = self._index is not None and self._at.records_to >= self._log.log_end_offset
        return self._at.target if is_known else None

    def _append(self, marks: list[Mark], acks: int = -1) -> bool:
        now_ms = self._shared.clock.now_ms()
        try:
            self.partition.append(build_marks(marks, now_ms), acks, now_ms, COORDINATOR)
        except (AppendError, ApiError, OSError) as error:  # the append is retried, even with a full disk
            log.debug("marks of %s-%d: %s", *self.partition.key, error)
            return False
        return True

    # -- the loop

    async def _run(self) -> None:
        while not self._is_closed:
            try:
                await self._follow()
            except (sqlite3.Error, OSError, ApiError) as error:
                self._complain(error)
                await self._restart(is_damaged=isinstance(error, sqlite3.Error) and not lacks_resources(error))
            except Exception:
                log.exception("schedules of %s-%d are read again", *self.partition.key)
                await self._restart(is_damaged=True)

    def _complain(self, error: Exception) -> None:
        """Log an error; at the level DEBUG if the last try had the same error."""
        level = logging.DEBUG if str(error) == self._error else logging.ERROR
        self._error = str(error)
        log.log(level, "schedules of %s-%d wait, and are read again: %s", *self.partition.key, error)

    async def _restart(self, *, is_damaged: bool) -> None:
        """Close the index, and remove it if it is damaged. After each failure in a row, wait longer."""
        try:
            await self._stop(clean=False)
            if is_damaged:
                await self._shared.call(remove_index, self._log.directory)
        except (sqlite3.Error, OSError) as error:
            log.error("the index of %s-%d cannot be removed: %s", *self.partition.key, error)
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _MOST_PAUSE_S)
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        await asyncio.sleep(pause_s)

    def _works_again(self) -> None:
        if self._failures:
            log.warning("schedules of %s-%d go on", *self.partition.key)
            self._failures, self._error = 0, ""

    async def _stop(self, *, clean: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._leading is not None:
            self._leading.end()
            self._leading = None
        index, self._index = self._index, None
        if index is not None:
            await self._shared.call(lambda: index.close(clean=clean))

    async def _follow(self) -> None:
        """Follow the log until the partition is gone."""
        while not self._is_closed:
            if not self._shared.is_hosted(self.partition):
                self._is_closed = True
                await self._stop(clean=True)
                return
            if self.partition.log is not self._log:
                await self._stop(clean=False)
                self._log = self.partition.log  # the log was moved to another directory
                self._source = Source(self.partition.topic, self.partition.index, self._log)
            if self._index is None:
                await self._open()
            self._wake.clear()
            if self.partition.log is not self._log:
                continue
            is_behind = await self._catch_up()
            if self.partition.log is not self._log:
                continue
            self._lead()
            if not is_behind:
                self._works_again()
                self._set_timer()
                await self._wake.wait()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wait_ms = None if self._leading is None or not self._leading.is_ready else self._leading.ms_to_next()
        if wait_ms is not None:
            wait_s = min(max(wait_ms / 1000, 0.001), _LONGEST_WAIT_S)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)

    @property
    def _is_due(self) -> bool:
        wait_ms = None if self._leading is None or not self._leading.is_ready else self._leading.ms_to_next()
        return wait_ms is not None and wait_ms <= 0

    # -- following the log

    async def _open(self) -> None:
        """Open the index, or begin an empty index if the existing file is not the index of this log."""
        records, shared = self._log, self._shared
        index = await shared.call(open_index, records.directory, shared.boot)
        if not self._belongs(index.positions):
            await shared.call(index.close)
            await shared.call(remove_index, records.directory)
            index = await shared.call(open_index, records.directory, shared.boot)
        self._index = index
        self._at = at = index.positions
        numbers = {lane: number for number, lane in index.lanes.items()}
        self._context = Context(index.salt, numbers, shared.partitions, records.config.max_decompressed_message_bytes)
        if at == Positions():
            start = records.log_start_offset
            is_active, target = await in_slices(self._state_at_start())
            self._at = Positions(start, start, -1, is_active, target, start)
        self._times = Times()
        self._times.update(await shared.call(lambda: {number: index.next_ms(number) for number in index.lanes}))
        self._keep(await shared.call(index.floor))
        self._has_changed = True

    def _belongs(self, at: Positions) -> bool:
        """Whether an index was made from this log."""
        records = self._log
        if at.marks_to > records.log_end_offset:
            return False
        last = at.marks_to - 1
        return last < records.log_start_offset or at.epoch in (-1, records.leader_epochs.epoch_for_offset(last))

    async def _state_at_start(self) -> tuple[bool, str]:
        """Return whether the first records of the log are schedules, and their default target.

        The first Begin or Pause mark in the log also contains the state before it. The mark that preceded the first
        records may already be deleted.
        """
        records = self._log
        target = records.config.schedule_target_topic
        if not records.log_start_offset:
            return False, target  # a mark precedes the first record of a schedule topic
        for mark in first_toggle(records, records.log_end_offset):
            if mark is not None:
                known = mark.target if isinstance(mark, Begin) else target
                return isinstance(mark, Pause) or not mark.is_change, known if mark.before is None else mark.before
            await turn
        return records.config.schedule_enable, target

    def _keep(self, floor: int | None) -> None:
        self._log.kept_from = self._at.records_to if floor is None else min(floor, self._at.records_to)

    async def _catch_up(self) -> bool:
        """Replay the committed part of the log. Return whether more records have been committed meanwhile."""
        records = self._log
        if records.log_end_offset < self._at.marks_to:
            raise sqlite3.DataError("the log now ends before the end of the replayed records")
        start = records.log_start_offset
        if start > self._at.start:
            at = self._at._replace(
                start=start, records_to=max(self._at.records_to, start), marks_to=max(self._at.marks_to, start)
            )
            if self._at.records_to < start:  # a Begin or Pause mark may have been deleted unread
                is_active, target = await in_slices(self._state_at_start())
                at = at._replace(active=is_active, target=target)
            await self._apply([Cut(start)], at)
        high, stable = records.high_watermark, records.last_stable_offset
        if self._at.records_to < stable:
            await in_slices(self._replay(stable))
        if self._at.marks_to < high:
            await in_slices(self._replay_ahead(high))
        return self._at.records_to < records.last_stable_offset or self._at.marks_to < records.high_watermark

    async def _replay(self, stable: int) -> None:
        assert self._context is not None
        async for events, at in read_events(self._log, self._at, stable, self._context):
            await self._apply(events, at)

    async def _replay_ahead(self, high: int) -> None:
        async for events, at in read_marks_ahead(self._log, self._at, high):
            await self._apply(events, at)

    async def _apply(self, events: list[Event], at: Positions) -> None:
        index = self._index
        assert index is not None
        if self._leading is not None:
            self._leading.coming(events)
        applied = await self._shared.call(index.apply, events, at)
        self._at = at
        self._times.update(applied.next_ms)
        self._keep(applied.floor)
        self._has_changed = True
        if self._leading is not None:
            self._leading.replayed(applied)

    # -- leading

    def _lead(self) -> None:
        """Do the present work of a leader."""
        partition = self.partition
        epoch = partition.leader_epoch if partition.leading else -1
        if self._leading is not None and self._leading.epoch != epoch:
            self._leading.end()
            self._leading = None
        if epoch < 0 or self._is_closed:
            return
        if self._leading is None:
            assert self._index is not None
            name = f"{partition.topic}-{partition.index}"
            self._leading = Leading(
                name, epoch, self._log, self._shared, self._source, self._index, self._times, self.counts,
                self._append, self._wake.set,
            )  # fmt: skip
        leading, at = self._leading, self._at
        if self._log.is_unmarked:
            self._mark_state()
        if not leading.is_ready:
            if at.marks_to < leading.fire_from or at.records_to < min(leading.fire_from, self._log.last_stable_offset):
                return
            leading.begin()
        leading.work()

    # -- counts

    async def count(self) -> None:
        """Count the pending and the due records, if their number may have changed. Long counts run less often."""
        index = self._index
        now = self._shared.clock.monotonic_ms()
        if index is None or now < self._count_after or not (self._has_changed or self.late_ms()):
            return
        self._has_changed = False
        now_ms = self._shared.clock.now_ms()
        try:
            due = await self._shared.call(index.due_count, self._times.reached(now_ms), now_ms)
        except sqlite3.Error:
            return  # the index is opened again
        self._count_after = now + _COUNT_PAUSES * (self._shared.clock.monotonic_ms() - now)
        self.counts.pending, self.counts.due = index.pending, due

    def late_ms(self) -> int:
        """Return the time in ms for which the earliest record is overdue; 0 if no record is overdue."""
        first = self._times.first()
        return 0 if first is None else max(self._shared.clock.now_ms() - first, 0)

    @property
    def is_settled(self) -> bool:
        """Whether all records that can fire now have fired. Records that wait after a failure do not count."""
        records, leading = self._log, self._leading
        if not self.partition.leading:
            return True
        if self._at.records_to < records.last_stable_offset or self._at.marks_to < records.high_watermark:
            return False
        return leading is not None and leading.is_ready and leading.is_idle and not self._is_due

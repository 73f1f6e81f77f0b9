"""One hosted partition of a schedule topic: its index follows the log, and its leader fires what is due.

Owns the order of the steps:

    record -> committed -> replayed into the index -> due -> INTENT in the log -> committed -> replayed
           -> the batch goes to the target, until its outcome is known -> DONE in the log -> committed -> replayed

Every step is repeated after a crash or by another leader from what is in the log, and has the same effect: an intent
fixes the batch with its producer id and sequence, so the target appends it once. A leader decides only when it has
replayed all marks that were in its log when it began to lead, and each target's partition has at most one intent
without outcome. A replaced leader cannot append an intent, so it sends nothing new.

A follower's index follows too, so that after a fail-over the next leader continues at once. Never decides what a record
means (kbroker/schedules/), and never opens a connection. Times are ms since 1970 (UTC) unless they are monotonic.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kbroker.cluster_state import TopicState
from kbroker.failpoints import passed
from kbroker.log.append_info import COORDINATOR, AppendError
from kbroker.long_work import in_slices, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.schedules.language import Schedule
from kbroker.schedules.marks import Begin, Done, Due, Intent, Mark, Pause, build_marks
from kbroker.schedules.partitioner import partition_of
from kbroker.scheduling.delivery import OF_THE_PRODUCER, Delivery
from kbroker.scheduling.firing import Chosen, Source
from kbroker.scheduling.index import (
    Applied,
    Cancel,
    Cut,
    Event,
    Index,
    Lane,
    Outstanding,
    Positions,
    Put,
    open_index,
    remove_index,
)
from kbroker.scheduling.reading import Context, first_toggle, read_events, read_marks_ahead
from kbroker.scheduling.shared import BATCH_BYTES, BATCH_RECORDS, Shared, is_schedule_topic

log = logging.getLogger(__name__)
_LANES_AT_ONCE: Final = 8
"""The lanes of a partition for which batches are built or sent at the same time, beside those that wait for targets."""
_FIRST_PAUSE_MS, _MOST_PAUSE_MS = 1_000, 300_000
_SOON_MS: Final = 100
_LONGEST_WAIT_S: Final = 60.0
_REPAIR_PAUSE_S: Final = 1.0
_MARKS_AT_ONCE: Final = 64
_BYTES_A_RECORD: Final = 16
_MARK_BYTES: Final = 1024
_SEQUENCES: Final = 1 << 31

Target = tuple[bytes, int]
"""A topic id, and a partition."""
Sent = tuple[int, int, bytes, int]
"""What identifies an intent before it has an offset: producer id, sequence, topic id and partition."""


@dataclass(slots=True, eq=False)
class _LaneState:
    """How a lane fares at this leader."""

    most: int = BATCH_RECORDS
    """How many records go together; fewer after a refusal, so that those without fault get through."""
    not_before: float = 0.0
    """The monotonic time before which the lane is not tried again."""
    fails: int = 0
    error: str = ""
    served: int = 0
    """When the lane was last served, as a count."""
    next_partition: int = 0
    replaced: set[int] = field(default_factory=set)
    """The keys of records that were replaced or cancelled while a batch is built."""
    cut: int = 0


@dataclass(slots=True, eq=False)
class _Prepared:
    """A batch whose intent is not in the log yet, or not committed."""

    lane: int
    intent: Intent
    chosen: Chosen
    batch: memoryview
    is_cancelled: bool = False

    @property
    def identity(self) -> Sent:
        intent = self.intent
        return intent.producer_id, intent.base_sequence, intent.topic_id, intent.partition


@dataclass(slots=True)
class Counts:
    """What happened on this broker."""

    fired: int = 0
    failed: int = 0
    lateness_ms: int = 0
    """How late the most recent batch was, by its earliest record."""
    pending: int = 0
    due: int = 0
    """These two are counted from time to time."""


@dataclass(slots=True, eq=False)
class _Term:
    """The state of one leadership."""

    epoch: int
    fire_from: int
    """The end of the log at its beginning: all marks before it must be replayed first."""
    is_ready: bool = False
    producer_id: int = -1
    sequences: dict[tuple[int, Target], int] = field(default_factory=dict)
    """The next sequence by producer id and target."""
    lanes: dict[int, _LaneState] = field(default_factory=dict)
    at_work: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """The lanes for which a batch is being built."""
    waiting: set[int] = field(default_factory=set)
    """The lanes with a batch that is not done."""
    targets: dict[Target, int] = field(default_factory=dict)
    """The targets with an intent that is not done, or that is being built."""
    prepared: list[_Prepared] = field(default_factory=list)
    appended: dict[Sent, _Prepared] = field(default_factory=dict)
    sending: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """The deliveries by the offset of the intent."""
    lane_of: dict[int, int] = field(default_factory=dict)
    done: list[Done] = field(default_factory=list)
    served: int = 0
    append_after: float = 0.0

    def end(self) -> None:
        for task in (*self.at_work.values(), *self.sending.values()):
            task.cancel()


class ScheduledPartition:
    """Follows one partition from `begin` to `close`. It is a `Waiter` of the partition."""

    def __init__(self, partition: Partition, shared: Shared) -> None:
        self.partition = partition
        self.counts = Counts()
        self._shared = shared
        self._log = partition.log
        self._source = Source(partition.topic, partition.index, partition.log)
        self._index: Index | None = None
        self._at = Positions()
        self._context: Context | None = None
        self._next: dict[int, int | None] = {}  # lane -> the earliest time at which a row may fire
        self._term: _Term | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._marked: tuple[bool, str] | None = None
        self._is_change = False
        self._is_closed = False
        self._changed_counts = True

    # -- lifecycle

    def begin(self, *, is_change: bool) -> None:
        """Start to follow. `is_change` says that the topic has just become a schedule topic."""
        self._is_change = is_change
        self._log.is_unmarked = True
        self.partition.waiters[self] = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        self.poke()

    async def close(self, *, clean: bool) -> None:
        """Stop. With `clean`, all is on disk afterwards, so that the index is trusted after another boot."""
        self._is_closed = True
        self.partition.waiters.pop(self, None)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stop(clean=clean)

    @property
    def is_closed(self) -> bool:
        """Whether it follows no more."""
        return self._is_closed

    def reconfigured(self) -> None:
        """Note that the topic's configs may have changed: the leader then marks it before the next record."""
        if self._marked is not None and self._marked != self._wanted():
            self._is_change = True
            self._log.is_unmarked = True
        self.poke()

    def poke(self) -> None:
        """Look again: the log, the leadership or the time has changed."""
        if self._log.is_unmarked and self.partition.leading:
            self._mark_state()
        self._wake.set()

    def tick(self) -> None:
        """Look at the clock again, which may have jumped."""
        if self._log.is_unmarked or self._is_due():
            self.poke()

    # -- the mark that says whether records are schedules

    def _wanted(self) -> tuple[bool, str]:
        config = self.partition.log.config
        return config.schedule_enable, config.schedule_target_topic

    def _mark_state(self) -> None:
        """Write whether the following records are schedules. Until then, clients' records are refused."""
        is_enabled, target = self._wanted()
        mark = Begin(target, self._is_change) if is_enabled else Pause()
        self._log.is_unmarked = False  # first, because the append pokes
        if not self._append([mark], acks=1):
            self._log.is_unmarked = True
            return
        self._marked = is_enabled, target
        self._is_change = False

    def _append(self, marks: list[Mark], acks: int = -1) -> bool:
        now_ms = self._shared.clock.now_ms()
        try:
            self.partition.append(build_marks(marks, now_ms), acks, now_ms, COORDINATOR)
        except (AppendError, ApiError) as error:
            log.debug("marks of %s-%d: %s", *self.partition.key, error)
            return False
        return True

    # -- the loop

    async def _run(self) -> None:
        while not self._is_closed:
            try:
                await self._follow()
            except (sqlite3.Error, OSError, ApiError) as error:
                log.error("schedules of %s-%d are read again: %s", *self.partition.key, error)
                await self._restart(is_damaged=isinstance(error, sqlite3.Error))
            except Exception:
                log.exception("schedules of %s-%d are read again", *self.partition.key)
                await self._restart(is_damaged=True)

    async def _restart(self, *, is_damaged: bool) -> None:
        await self._stop(clean=False)
        if is_damaged:
            await self._shared.call(_remove, self._log.directory)
        await asyncio.sleep(_REPAIR_PAUSE_S)

    async def _stop(self, *, clean: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._term is not None:
            self._term.end()
            self._term = None
        index, self._index = self._index, None
        if index is not None:
            await self._shared.call(lambda: index.close(clean=clean))

    async def _follow(self) -> None:
        """Follow the log until the partition or its log is gone."""
        while not self._is_closed:
            if not self._shared.is_hosted(self.partition):
                self._is_closed = True
                await self._stop(clean=True)
                return
            if self.partition.log is not self._log:
                await self._stop(clean=False)
                self._log = self.partition.log
                self._log.is_unmarked = True
                self._source = Source(self.partition.topic, self.partition.index, self._log)
            if self._index is None:
                await self._open()
            self._wake.clear()
            if self.partition.log is self._log:
                is_behind = await self._catch_up()
                if self.partition.log is self._log:
                    self._lead()
                    if is_behind:
                        continue
            self._set_timer()
            await self._wake.wait()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = self._seconds_to_next()
        self._timer = None
        if wait_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(max(wait_s, 0.001), _LONGEST_WAIT_S), self._wake.set)

    def _seconds_to_next(self) -> float | None:
        """Return the time in s until there is something to do, if nothing else happens."""
        term = self._term
        if term is None or not term.is_ready or not self._log.config.schedule_enable:
            return None
        now_ms, monotonic = self._shared.clock.now_ms(), self._shared.clock.monotonic_ms()
        waits = [term.append_after - monotonic] if (term.done or term.prepared) else []
        if len(term.at_work) < _LANES_AT_ONCE:
            for lane, at_ms in self._next.items():
                if at_ms is not None and lane not in term.at_work and lane not in term.waiting:
                    state = term.lanes.get(lane)
                    waits.append(max(at_ms - now_ms, 0.0 if state is None else state.not_before - monotonic))
        return min(waits) / 1000 if waits else None

    def _is_due(self) -> bool:
        wait_s = self._seconds_to_next()
        return wait_s is not None and wait_s <= 0

    # -- following the log

    async def _open(self) -> None:
        """Open the index, or begin an empty one if it is not the index of this log."""
        records, shared = self._log, self._shared
        index = await shared.call(open_index, records.directory, shared.boot)
        if not self._belongs(index.positions):
            await shared.call(index.close)
            await shared.call(_remove, records.directory)
            index = await shared.call(open_index, records.directory, shared.boot)
        self._index = index
        self._at = at = index.positions
        numbers = {lane: number for number, lane in index.lanes.items()}
        self._context = Context(index.salt, numbers, shared.partitions, records.config.max_decompressed_message_bytes)
        if at == Positions():
            self._at = at._replace(
                records_to=records.log_start_offset,
                marks_to=records.log_start_offset,
                start=records.log_start_offset,
                active=await in_slices(self._began_active()),
                target=records.config.schedule_target_topic,
            )
        self._next = await shared.call(lambda: {number: index.next_ms(number) for number in index.lanes})
        self._keep(await shared.call(index.floor))
        self._changed_counts = True

    def _belongs(self, at: Positions) -> bool:
        """Whether an index was made from this log."""
        records = self._log
        if at.marks_to > records.log_end_offset:
            return False
        last = at.marks_to - 1
        return last < records.log_start_offset or at.epoch in (-1, records.leader_epochs.epoch_for_offset(last))

    async def _began_active(self) -> bool:
        """Return whether the first records of the log are schedules; the first mark about it says what was before."""
        records = self._log
        if not records.log_start_offset:
            return False  # a mark precedes the first record of a schedule topic
        for mark in first_toggle(records, records.log_end_offset):
            if mark is not None:
                return isinstance(mark, Pause) or not mark.is_change
            await turn
        return records.config.schedule_enable

    def _keep(self, floor: int | None) -> None:
        self._log.kept_from = self._at.records_to if floor is None else min(floor, self._at.records_to)

    async def _catch_up(self) -> bool:
        """Replay what is committed. Return whether more has been committed meanwhile."""
        records, index, context = self._log, self._index, self._context
        assert index is not None
        assert context is not None
        if records.log_end_offset < self._at.marks_to:
            raise OSError("the log has become shorter than what was replayed")
        if records.log_start_offset > self._at.start:
            start = records.log_start_offset
            at = self._at._replace(
                start=start, records_to=max(self._at.records_to, start), marks_to=max(self._at.marks_to, start)
            )
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
        if self._term is not None and (self._term.prepared or self._term.at_work):
            self._cancel_prepared(self._term, events)
        applied = await self._shared.call(index.apply, events, at)
        if applied.begun:
            passed("schedule.replayed")
        self._at = at
        self._next.update(applied.next_ms)
        self._keep(applied.floor)
        self._changed_counts = True
        self._note(applied)

    def _cancel_prepared(self, term: _Term, events: Iterable[Event]) -> None:
        """Give up batches with records that have just been replaced, cancelled or deleted."""
        keys = {event.key for event in events if isinstance(event, Put | Cancel) and event.key is not None}
        start = max((event.start for event in events if isinstance(event, Cut)), default=0)
        for each in term.prepared:
            if _has_lost(each.chosen, keys, start):
                each.is_cancelled = True
        for lane in term.at_work:
            term.lanes[lane].replaced |= keys
            term.lanes[lane].cut = max(term.lanes[lane].cut, start)

    def _note(self, applied: Applied) -> None:
        """Begin and end deliveries, by the marks that have been replayed."""
        term = self._term
        if term is None:
            return
        for intent in applied.begun:
            if term.is_ready:
                self._send(term, intent)
        for intent, done in applied.ended:
            self._ended(term, intent, done)

    # -- leading

    def _lead(self) -> None:
        """Do what a leader does now: write marks, and begin to build batches."""
        partition = self.partition
        epoch = partition.leader_epoch if partition.leading else -1
        if self._term is not None and self._term.epoch != epoch:
            self._term.end()
            self._term = None
        if epoch < 0 or self._is_closed:
            return
        if self._term is None:
            self._term = _Term(epoch, self._log.log_end_offset)
        term = self._term
        if self._log.is_unmarked:
            self._mark_state()
        if not term.is_ready:
            if self._at.marks_to < term.fire_from or self._at.records_to < min(
                term.fire_from, self._log.last_stable_offset
            ):
                return
            term.is_ready = True
            assert self._index is not None
            for intent in list(self._index.outstanding.values()):
                self._send(term, intent)
        self._write_marks(term)
        self._begin_lanes(term)

    def _write_marks(self, term: _Term) -> None:
        """Append the outcomes, and the intents of batches that still may go."""
        if not (term.done or term.prepared) or self._shared.clock.monotonic_ms() < term.append_after:
            return
        now_ms, is_enabled = self._shared.clock.now_ms(), self._log.config.schedule_enable
        ready: list[_Prepared] = []
        room = min(self._log.config.segment_bytes, 1 << 20) - _MARK_BYTES
        marks: list[Mark] = []
        for done in term.done[:_MARKS_AT_ONCE]:
            room -= _size_of(done)
            if marks and room < 0:
                break
            marks.append(done)
        done_count = len(marks)
        for each in list(term.prepared):
            if each.is_cancelled or not is_enabled or any(due.due_ms > now_ms for due in each.chosen.dues):
                term.prepared.remove(each)
                self._release(term, each.lane, each.intent)
                continue
            room -= _size_of(each.intent)
            if marks and (room < 0 or len(marks) >= _MARKS_AT_ONCE):
                break
            marks.append(each.intent)
            ready.append(each)
        if not marks:
            return
        for each in ready:
            term.appended[each.identity] = each  # first, because the append pokes
        if not self._append(marks):
            for each in ready:
                del term.appended[each.identity]
            term.append_after = self._shared.clock.monotonic_ms() + _SOON_MS
            return
        passed("schedule.intended")
        del term.done[:done_count]
        for each in ready:
            term.prepared.remove(each)
        self._wake.set()

    def _release(self, term: _Term, lane: int, intent: Intent) -> None:
        term.waiting.discard(lane)
        term.targets.pop((intent.topic_id, intent.partition), None)

    def _begin_lanes(self, term: _Term) -> None:
        if not self._log.config.schedule_enable or len(term.at_work) >= _LANES_AT_ONCE:
            return
        now_ms, monotonic = self._shared.clock.now_ms(), self._shared.clock.monotonic_ms()
        due: list[tuple[int, int]] = []
        for lane, at_ms in self._next.items():
            if at_ms is None or at_ms > now_ms or lane in term.at_work or lane in term.waiting:
                continue
            state = term.lanes.setdefault(lane, _LaneState())
            if state.not_before <= monotonic:
                due.append((state.served, lane))
        due.sort()
        for _, lane in due[: _LANES_AT_ONCE - len(term.at_work)]:
            term.served += 1
            term.lanes[lane].served = term.served
            term.at_work[lane] = asyncio.get_running_loop().create_task(self._prepare(term, lane))

    async def _prepare(self, term: _Term, lane: int) -> None:
        """Build a batch of a lane."""
        state = term.lanes[lane]
        try:
            await self._build(term, lane, state)
        except (ApiError, OSError, sqlite3.Error) as error:
            self._put_off(state, str(error), _SOON_MS)
        except Exception as error:
            log.exception("a batch of %s-%d cannot be built", *self.partition.key)
            self._put_off(state, str(error))
        finally:
            term.at_work.pop(lane, None)
            self._wake.set()

    def _put_off(self, state: _LaneState, error: str, pause_ms: float | None = None) -> None:
        if pause_ms is None:
            pause_ms = min(_FIRST_PAUSE_MS * 2**state.fails, _MOST_PAUSE_MS)
            state.fails = min(state.fails + 1, 20)
            if state.error != error:
                log.warning("schedules of %s-%d wait: %s", *self.partition.key, error)
        state.error = error
        state.not_before = self._shared.clock.monotonic_ms() + pause_ms

    async def _build(self, term: _Term, number: int, state: _LaneState) -> None:
        shared, index = self._shared, self._index
        assert index is not None
        lane = index.lanes[number]
        topic = shared.topic(lane.topic)
        why = _why_not(lane, topic)
        if why is not None or topic is None:
            self._put_off(state, why or "")
            return
        now_ms = shared.clock.now_ms()
        state.replaced.clear()
        most = max(1, min(state.most, (self._log.config.segment_bytes - _MARK_BYTES) // _BYTES_A_RECORD))
        rows = await shared.call(index.due, number, now_ms, most)
        if not rows:
            self._next[number] = await shared.call(index.next_ms, number)
            return
        choice = _Choice(topic, term, state)
        chosen = await in_slices(
            self._source.choose(rows, lane.topic, choice, min(shared.most_bytes(topic), BATCH_BYTES), now_ms)
        )
        if chosen.lost:
            again = [(row.offset, now_ms + _pause_of(row.tries), "the record cannot be read") for row in chosen.lost]
            self._next.update(await shared.call(index.try_later, again))
        target = topic.topic_id, chosen.partition
        if not chosen.dues or target in term.targets:
            if not chosen.lost:
                self._put_off(state, "all partitions wait", _SOON_MS)
            return
        if self._term is not term:
            return
        term.targets[target] = number
        try:
            intent = self._intent(term, topic, chosen)
            batch = await in_slices(chosen.batch(intent.producer_id, intent.base_sequence))
        except BaseException:
            term.targets.pop(target, None)
            raise
        state.fails, state.error = 0, ""
        if _has_lost(chosen, state.replaced, state.cut):
            term.targets.pop(target, None)
            return
        term.waiting.add(number)
        term.prepared.append(_Prepared(number, intent, chosen, batch))

    def _intent(self, term: _Term, topic: TopicState, chosen: Chosen) -> Intent:
        """Return the intent for a batch. Raises ApiError while no producer id is to be had."""
        if term.producer_id < 0:
            term.producer_id = self._shared.producer_ids.next()
        target = topic.topic_id, chosen.partition
        sequence = term.sequences.get((term.producer_id, target), 0)
        return Intent(term.producer_id, 0, sequence, topic.topic_id, topic.name, chosen.partition, tuple(chosen.dues))

    # -- deliveries

    def _send(self, term: _Term, outstanding: Outstanding) -> None:
        """Deliver a committed intent."""
        intent = outstanding.mark
        identity = intent.producer_id, intent.base_sequence, intent.topic_id, intent.partition
        prepared = term.appended.pop(identity, None)
        if prepared is not None:
            term.lane_of[outstanding.offset] = prepared.lane
        term.targets[intent.topic_id, intent.partition] = -1 if prepared is None else prepared.lane
        task = asyncio.get_running_loop().create_task(self._deliver(term, outstanding, prepared))
        term.sending[outstanding.offset] = task

    async def _deliver(self, term: _Term, outstanding: Outstanding, prepared: _Prepared | None) -> None:
        intent = outstanding.mark
        delivery = Delivery(self._shared, self._source, intent, was_sent=prepared is None)
        chosen, batch = (None, None) if prepared is None else (prepared.chosen, prepared.batch)
        del prepared
        try:
            code, sent = await delivery.run(chosen, batch)
        except Exception as error:
            # The intent stays without outcome; the next term sends it again.
            log.exception("an intent of %s-%d at offset %d failed", *self.partition.key, outstanding.offset)
            raise RuntimeError from error
        passed("schedule.delivered")
        now_ms = self._shared.clock.now_ms()
        term.done.append(self._outcome(outstanding, code, sent, now_ms))
        if code is ErrorCode.NONE:
            self.counts.fired += len(intent.records)
            self.counts.lateness_ms = max(now_ms - min(due.due_ms for due in intent.records), 0)
        self._wake.set()

    def _outcome(self, outstanding: Outstanding, code: ErrorCode, sent: Chosen | None, now_ms: int) -> Done:
        offset, intent = outstanding.offset, outstanding.mark
        if code is ErrorCode.NONE:
            following: list[Due] = []
            for due, repeat in () if sent is None else sent.repeats:
                # Times that have been missed meanwhile count as this one.
                next_ms = repeat.next_after(max(due.due_ms, now_ms))
                if next_ms is not None:
                    following.append(Due(due.offset, next_ms))
            return Done(offset, following=tuple(following))
        retry_ms = -1
        if len(intent.records) == 1:
            tries = max((row.tries for row in outstanding.rows.values()), default=0)
            retry_ms = now_ms + _pause_of(tries)
            self.counts.failed += 1
        text = f"{code.name} from {intent.topic}-{intent.partition}"
        return Done(offset, int(code), retry_ms=retry_ms, message=text)

    def _ended(self, term: _Term, outstanding: Outstanding, done: Done) -> None:
        """Go on after an outcome is in the log."""
        intent = outstanding.mark
        target = intent.topic_id, intent.partition
        count = len(intent.records)
        term.sending.pop(outstanding.offset, None)
        lane = term.lane_of.pop(outstanding.offset, None)
        term.targets.pop(target, None)
        state = None if lane is None else term.lanes.get(lane)
        if lane is not None:
            term.waiting.discard(lane)
        if not done.error_code:
            key = intent.producer_id, target
            term.sequences[key] = (intent.base_sequence + count) % _SEQUENCES
            if state is not None:
                state.most = min(2 * state.most, BATCH_RECORDS)
            return
        if state is not None:
            state.most = max(count // 2, 1)
        if ErrorCode(done.error_code) in OF_THE_PRODUCER and term.producer_id == intent.producer_id:
            term.producer_id = -1
        if count == 1:
            offset = intent.records[0].offset
            log.warning("%s-%d: the record at offset %d waits: %s", *self.partition.key, offset, done.message)

    # -- counts

    async def count(self) -> None:
        """Count what is pending and due, if it may have changed."""
        index = self._index
        if index is None or not self._changed_counts:
            return
        self._changed_counts = False
        try:
            counts = await self._shared.call(index.counts, self._shared.clock.now_ms())
        except sqlite3.Error:
            return  # it is opened again
        self.counts.pending, self.counts.due = counts

    def late_ms(self) -> int:
        """Return for how long the record that waits longest is overdue; 0 if none is."""
        first = min((at_ms for at_ms in self._next.values() if at_ms is not None), default=None)
        return 0 if first is None else max(self._shared.clock.now_ms() - first, 0)

    @property
    def outstanding(self) -> int:
        """The number of intents without outcome."""
        return 0 if self._index is None else len(self._index.outstanding)


class _Choice:
    """Chooses the partition of the target for a schedule: -1 if it cannot go now."""

    def __init__(self, topic: TopicState, term: _Term, state: _LaneState) -> None:
        self._topic = topic
        self._count = len(topic.partitions)
        self._busy = term.targets
        self._any = -1
        for step in range(self._count):
            partition = (state.next_partition + step) % self._count
            is_led = topic.partitions[partition].leader >= 0
            if is_led and (topic.topic_id, partition) not in self._busy:
                self._any = partition
                break
        state.next_partition = (self._any + 1) % self._count

    def __call__(self, schedule: Schedule) -> int:
        if schedule.partition is not None:
            partition = schedule.partition if schedule.partition < self._count else -1
        elif schedule.key is not None:
            partition = partition_of(schedule.key, self._count)
        else:
            return self._any
        return -1 if (self._topic.topic_id, partition) in self._busy else partition


def _why_not(lane: Lane, topic: TopicState | None) -> str | None:
    """Return why nothing can go to a target now."""
    if topic is None or not topic.partitions:
        return f"the topic {lane.topic} does not exist"
    if is_schedule_topic(topic):
        return f"the topic {lane.topic} is a schedule topic itself"
    if lane.partition >= len(topic.partitions):
        return f"the topic {lane.topic} has no partition {lane.partition}"
    return None


def _has_lost(chosen: Chosen, keys: set[int], start: int) -> bool:
    """Whether records of a batch were replaced, cancelled or deleted."""
    return not keys.isdisjoint(chosen.keys) or any(due.offset < start for due in chosen.dues)


def _pause_of(tries: int) -> int:
    return int(min(_FIRST_PAUSE_MS * 2 ** min(tries, 20), _MOST_PAUSE_MS))


def _size_of(mark: Done | Intent) -> int:
    count = len(mark.records) if isinstance(mark, Intent) else len(mark.following)
    return _MARK_BYTES // 2 + _BYTES_A_RECORD * count


def _remove(directory: str) -> None:
    remove_index(directory)

"""One leadership of a partition of a schedule topic: due records get an intent, are delivered, and get their outcome.

Owns the lanes at work, the batches without a committed intent, and the deliveries. Each partition of a target has at
most one intent without outcome. A leadership has a producer id of its own, so that sequences need not be stored; it
sends an intent of an earlier leadership again with the producer id in that intent. Ends with the leadership; the log
contains its unfinished work. Never replays the log (scheduled.py). Times are ms since 1970 (UTC) or monotonic.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kbroker.cluster_state import TopicState
from kbroker.failpoints import passed
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import in_slices
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.schedules.marks import Done, Due, Dues, Intent, Mark
from kbroker.scheduling.delivery import OF_THE_PRODUCER, Delivery
from kbroker.scheduling.firing import Chosen, Source
from kbroker.scheduling.index import Applied, Cancel, Cut, Event, Index, Outstanding, Put
from kbroker.scheduling.lanes import Choice, LaneState, Target, Times, pause_of, why_not
from kbroker.scheduling.shared import BATCH_BYTES, BATCH_RECORDS, Shared

log = logging.getLogger(__name__)
_LANES_AT_ONCE: Final = 8
"""The maximum number of lanes for which batches are built at the same time."""
_SENT_AT_ONCE: Final = 8
"""While fewer batches than this are in flight, a lane without a partition of its own gets a further batch."""
_SOON_MS: Final = 100
_MARKS_AT_ONCE: Final = 64
_MARKS_BYTES: Final = 1 << 20
_BYTES_A_RECORD: Final = 16
_MARK_BYTES: Final = 1024
"""An upper bound of the size in bytes of a batch with one intent, without the bytes for each record."""
_SEQUENCES: Final = 1 << 31

Sent = tuple[int, int, bytes, int]
"""The identity of an intent before it has an offset: producer id, sequence, topic id and partition."""


@dataclass(slots=True)
class Counts:
    """The counts of events on this broker."""

    fired: int = 0
    failed: int = 0
    """The number of times that a target refused a record."""
    lateness_ms: int = 0
    """The delay of the most recent batch, by its earliest record."""
    pending: int = 0
    due: int = 0
    """`pending` and `due` are counted from time to time."""


@dataclass(slots=True, eq=False)
class _Prepared:
    """A batch whose intent is not yet in the log, or not yet committed."""

    lane: int
    intent: Intent
    chosen: Chosen
    batch: memoryview
    is_cancelled: bool = False


class Leading:
    """The work of the leader from one election to the next."""

    def __init__(
        self,
        name: str,
        epoch: int,
        records: PartitionLog,
        shared: Shared,
        source: Source,
        index: Index,
        times: Times,
        counts: Counts,
        append: Callable[[list[Mark]], bool],
        wake: Callable[[], None],
    ) -> None:
        """Create the leadership.

        `times` has the time of each lane's next row; the replay also changes these times. `append` writes marks, and
        returns whether this succeeded. `wake` lets the owner call `work` again.
        """
        self.epoch = epoch
        self.fire_from = records.log_end_offset
        """The offset before which all marks must be replayed before the leadership decides anything."""
        self.is_ready = False
        self._name = name
        self._log = records
        self._shared = shared
        self._source = source
        self._index = index
        self._times = times
        self._counts = counts
        self._append = append
        self._wake = wake
        self._producer_id = -1
        self._sequences: dict[tuple[int, Target], int] = {}
        self._lanes: dict[int, LaneState] = {}
        self._building: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, Sent] = {}  # by lane: the batch for which the lane's next batch waits
        self._busy: dict[Target, int] = {}  # the targets that have an intent without outcome, or a prepared batch
        self._prepared: list[_Prepared] = []
        self._appended: dict[Sent, _Prepared] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}  # by the offset of the intent
        self._lane_of: dict[int, int] = {}
        self._done: list[Done] = []
        self._absent: dict[int, None] = {}  # the lanes whose target did not exist at the last try
        self._served = 0
        self._append_after = 0.0

    def end(self) -> None:
        """Stop. The next leadership again sends the batches that have no outcome in the log."""
        for task in (*self._building.values(), *self._sending.values()):
            task.cancel()

    def begin(self) -> None:
        """Begin to fire, after all earlier marks are replayed."""
        self.is_ready = True
        for intent in list(self._index.outstanding.values()):
            self._send(intent)

    # -- what the owner asks

    @property
    def errors(self) -> dict[int, str]:
        """Why lanes wait."""
        return {lane: state.error for lane, state in self._lanes.items() if state.fails}

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being built or sent, and no mark waits."""
        return not (self._building or self._waiting or self._prepared or self._sending or self._done)

    def ms_to_next(self) -> float | None:
        """Return the time in ms until the next work, if no other event happens; None if there is no work."""
        now_ms, monotonic = self._shared.clock.now_ms(), self._shared.clock.monotonic_ms()
        waits = [self._append_after - monotonic] if self._done or self._prepared else []
        if self._is_enabled and len(self._building) < _LANES_AT_ONCE:
            for lane in self._times.reached(now_ms):
                if lane not in self._building and lane not in self._waiting:
                    state = self._lanes.get(lane)
                    waits.append(0.0 if state is None else max(state.not_before - monotonic, 0.0))
            coming = self._times.next_coming()
            if coming is not None:
                waits.append(coming - now_ms)
        return min(waits, default=None)

    def look_again(self) -> None:
        """End the pauses of lanes whose target exists again."""
        for number in list(self._absent):
            lane = self._index.lanes[number]
            topic = self._shared.topic(lane.topic)
            if topic is not None and why_not(lane, topic) is None:
                del self._absent[number]
                self._lanes[number].not_before = 0.0

    @property
    def _is_enabled(self) -> bool:
        return self._log.config.schedule_enable

    # -- what has been replayed

    def coming(self, events: Iterable[Event]) -> None:
        """Drop batches with records that these events replace, cancel or delete."""
        if not (self._prepared or self._building):
            return
        keys = {event.key for event in events if isinstance(event, Put | Cancel) and event.key is not None}
        start = max((event.start for event in events if isinstance(event, Cut)), default=0)
        for each in self._prepared:
            if _has_lost(each.chosen, keys, start):
                each.is_cancelled = True
        for lane in self._building:
            self._lanes[lane].replaced |= keys
            self._lanes[lane].cut = max(self._lanes[lane].cut, start)

    def replayed(self, applied: Applied) -> None:
        """Deliver batches with a committed intent, and continue lanes after committed outcomes."""
        if applied.begun:
            passed("schedule.replayed")
        if self.is_ready:
            for intent in applied.begun:
                self._send(intent)
        for intent, done in applied.ended:
            self._ended(intent, done)

    # -- marks

    def work(self) -> None:
        """Write the waiting marks, and begin to build batches of due records."""
        self._write_marks()
        self._begin_lanes()

    def _write_marks(self) -> None:
        """Append the outcomes of sent batches. Also append the intents of prepared batches that may still be sent."""
        if not (self._done or self._prepared) or self._shared.clock.monotonic_ms() < self._append_after:
            return
        self._give_up()
        room = min(self._log.config.segment_bytes, _MARKS_BYTES) - _MARK_BYTES
        marks: list[Mark] = []
        ready: list[_Prepared] = []
        done_count = 0
        waiting: list[tuple[Mark, _Prepared | None]] = [(each, None) for each in self._done]
        waiting += [(each.intent, each) for each in self._prepared]
        for mark, prepared in waiting:
            room -= _size_of(mark)
            if marks and (room < 0 or len(marks) >= _MARKS_AT_ONCE):
                break
            marks.append(mark)
            if prepared is None:
                done_count += 1
            else:
                ready.append(prepared)
                self._appended[_identity(prepared.intent)] = prepared  # set first, because the append calls `poke`
        if not marks:
            return
        if not self._append(marks):
            for each in ready:
                del self._appended[_identity(each.intent)]
            self._append_after = self._shared.clock.monotonic_ms() + _SOON_MS
            return
        passed("schedule.intended")
        del self._done[:done_count]
        for each in ready:
            self._prepared.remove(each)
        self._wake()

    def _give_up(self) -> None:
        """Remove batches that must not be sent now: after a cancellation, after the clock went back, or in a pause."""
        now_ms = self._shared.clock.now_ms()
        for each in list(self._prepared):
            is_early = max(each.chosen.dues.times, default=now_ms) > now_ms
            if each.is_cancelled or is_early or not self._is_enabled:
                self._prepared.remove(each)
                self._let_go(each.lane, each.intent)
                self._busy.pop((each.intent.topic_id, each.intent.partition), None)

    # -- batches

    def _begin_lanes(self) -> None:
        if not self._is_enabled or len(self._building) >= _LANES_AT_ONCE:
            return
        now_ms, monotonic = self._shared.clock.now_ms(), self._shared.clock.monotonic_ms()
        due: list[tuple[int, int]] = []
        for lane in self._times.reached(now_ms):
            if lane in self._building or lane in self._waiting:
                continue
            state = self._lanes.setdefault(lane, LaneState())
            if state.not_before <= monotonic:
                due.append((state.served, lane))
        due.sort()
        for _, lane in due[: _LANES_AT_ONCE - len(self._building)]:
            self._served += 1
            self._lanes[lane].served = self._served
            self._building[lane] = asyncio.get_running_loop().create_task(self._prepare(lane))

    async def _prepare(self, lane: int) -> None:
        """Build a batch of a lane."""
        state = self._lanes[lane]
        try:
            await self._build(lane, state)
        except (ApiError, OSError, sqlite3.Error) as error:
            self._put_off(state, str(error), _SOON_MS)
        except Exception as error:
            log.exception("a batch of %s cannot be built", self._name)
            self._put_off(state, str(error))
        finally:
            self._building.pop(lane, None)
            self._wake()

    def _put_off(self, state: LaneState, error: str, pause_ms: float | None = None) -> None:
        if state.put_off(error, self._shared.clock.monotonic_ms(), pause_ms) and pause_ms is None:
            log.warning("schedules of %s wait: %s", self._name, error)

    async def _build(self, number: int, state: LaneState) -> None:
        shared, index = self._shared, self._index
        lane = index.lanes[number]
        topic = shared.topic(lane.topic)
        why = why_not(lane, topic)
        if why is not None or topic is None:
            self._absent[number] = None
            self._put_off(state, why or "")
            return
        now_ms = shared.clock.now_ms()
        state.replaced.clear()
        most = min(state.most, (self._log.config.segment_bytes - _MARK_BYTES) // _BYTES_A_RECORD)
        rows = await shared.call(index.due, number, now_ms, max(most, 1))
        if not rows:
            self._times.update({number: await shared.call(index.next_ms, number)})
            return
        most_bytes = min(shared.most_bytes(topic), BATCH_BYTES)
        choice = Choice(topic, self._busy, state)
        chosen = await in_slices(self._source.choose(rows, lane.topic, choice, most_bytes, now_ms))
        if chosen.lost or chosen.homeless:
            missing = f"the topic {lane.topic} lacks the partition that a record names"
            again = [(row.offset, now_ms + pause_of(row.tries), "the record cannot be read") for row in chosen.lost]
            again += [(row.offset, now_ms + pause_of(row.tries), missing) for row in chosen.homeless]
            self._times.update(await shared.call(index.try_later, again))
            if chosen.homeless and state.error != missing:
                state.error = missing
                log.warning("schedules of %s wait: %s", self._name, missing)
        target = topic.topic_id, chosen.partition
        if not chosen.dues or target in self._busy:
            if not (chosen.lost or chosen.homeless):
                self._put_off(state, f"all partitions of {lane.topic} wait", _SOON_MS * 2 ** min(state.fails, 5))
                state.fails += 1
            return
        intent = self._intent(topic, chosen)
        self._busy[target] = number
        try:
            batch = await in_slices(chosen.batch(intent.producer_id, intent.base_sequence))
        except BaseException:
            self._busy.pop(target, None)
            raise
        if _has_lost(chosen, state.replaced, state.cut):
            self._busy.pop(target, None)
            return
        state.succeeded()
        self._waiting[number] = _identity(intent)
        self._prepared.append(_Prepared(number, intent, chosen, batch))

    def _intent(self, topic: TopicState, chosen: Chosen) -> Intent:
        """Return the intent for a batch. Raises ApiError while no producer id is available."""
        if self._producer_id < 0:
            self._producer_id = self._shared.producer_ids.next()
        target = topic.topic_id, chosen.partition
        sequence = self._sequences.get((self._producer_id, target), 0)
        return Intent(self._producer_id, 0, sequence, *target[:1], topic.name, chosen.partition, chosen.dues)

    # -- deliveries

    def _send(self, outstanding: Outstanding) -> None:
        """Deliver a committed intent."""
        intent = outstanding.mark
        prepared = self._appended.pop(_identity(intent), None)
        if prepared is not None:
            self._lane_of[outstanding.offset] = prepared.lane
        self._busy[intent.topic_id, intent.partition] = -1 if prepared is None else prepared.lane
        task = asyncio.get_running_loop().create_task(self._deliver(outstanding, prepared))
        self._sending[outstanding.offset] = task
        if prepared is not None:
            self._let_on(prepared.lane)

    async def _deliver(self, outstanding: Outstanding, prepared: _Prepared | None) -> None:
        intent = outstanding.mark
        delivery = Delivery(self._shared, self._source, intent, was_sent=prepared is None)
        chosen, batch = (None, None) if prepared is None else (prepared.chosen, prepared.batch)
        del prepared
        code, sent = await delivery.run(chosen, batch, lambda: self._failed(outstanding.offset, intent))
        passed("schedule.delivered")
        now_ms = self._shared.clock.now_ms()
        self._done.append(self._outcome(outstanding, code, sent, now_ms))
        if code is ErrorCode.NONE:
            self._counts.fired += len(intent.records)
            self._counts.lateness_ms = max(now_ms - min(Dues.of(intent.records).times), 0)
        self._wake()

    def _failed(self, offset: int, intent: Intent) -> None:
        """After a failed attempt, let a lane send its next records to another partition if no partition is fixed."""
        lane = self._lane_of.get(offset)
        if lane is not None and self._index.lanes[lane].partition < 0:
            self._let_go(lane, intent)
            self._wake()

    def _let_go(self, lane: int, intent: Intent) -> None:
        """Allow a lane's next batch, if the lane still waits for this intent.

        If the lane waits for a later batch, the rows of that later batch may still be pending in the index.
        """
        if self._waiting.get(lane) == _identity(intent):
            del self._waiting[lane]

    def _let_on(self, lane: int) -> None:
        """Allow a lane's next batch if a partition is free, and the rows of the last batch are no longer pending."""
        batch, known = self._waiting.get(lane), self._index.lanes[lane]
        if batch is None or known.partition >= 0 or len(self._sending) >= _SENT_AT_ONCE:
            return
        if batch in self._appended or any(_identity(each.intent) == batch for each in self._prepared):
            return
        topic = self._shared.topic(known.topic)
        places = () if topic is None else enumerate(topic.partitions)
        if topic is not None and any(each.leader >= 0 and (topic.topic_id, i) not in self._busy for i, each in places):
            del self._waiting[lane]

    def _outcome(self, outstanding: Outstanding, code: ErrorCode, sent: Chosen | None, now_ms: int) -> Done:
        offset, intent = outstanding.offset, outstanding.mark
        if code is ErrorCode.NONE:
            following: list[Due] = []
            for due, repeat in () if sent is None else sent.repeats:
                # This delivery also counts for the times that were missed meanwhile.
                next_ms = repeat.next_after(max(due.due_ms, now_ms))
                if next_ms is not None:
                    following.append(Due(due.offset, next_ms))
            return Done(offset, following=tuple(following))
        retry_ms = -1
        if len(intent.records) == 1:
            retry_ms = now_ms + pause_of(outstanding.tries)
            self._counts.failed += 1
        text = f"{code.name} from {intent.topic}-{intent.partition}"
        return Done(offset, int(code), retry_ms=retry_ms, message=text)

    def _ended(self, outstanding: Outstanding, done: Done) -> None:
        """Continue the lane of an intent after its outcome is in the log."""
        intent = outstanding.mark
        target = intent.topic_id, intent.partition
        count = len(intent.records)
        self._sending.pop(outstanding.offset, None)
        lane = self._lane_of.pop(outstanding.offset, None)
        self._busy.pop(target, None)
        state = None if lane is None else self._lanes.get(lane)
        if lane is not None:
            self._let_go(lane, intent)
            self._let_on(lane)
        if not done.error_code:
            self._sequences[intent.producer_id, target] = (intent.base_sequence + count) % _SEQUENCES
            if state is not None:
                state.most = min(2 * state.most, BATCH_RECORDS)
            return
        if state is not None:
            state.most = max(count // 2, 1)
        if known_error(done.error_code) in OF_THE_PRODUCER and self._producer_id == intent.producer_id:
            self._producer_id = -1
        if count == 1:
            log.warning("the record at offset %d of %s waits: %s", intent.records[0].offset, self._name, done.message)


def _identity(intent: Intent) -> Sent:
    return intent.producer_id, intent.base_sequence, intent.topic_id, intent.partition


def _has_lost(chosen: Chosen, keys: set[int], start: int) -> bool:
    """Whether records of a batch were replaced, cancelled or deleted."""
    return not keys.isdisjoint(chosen.keys) or min(chosen.dues.offsets, default=start) < start


def _size_of(mark: Mark) -> int:
    count = len(mark.records) if isinstance(mark, Intent) else len(mark.following) if isinstance(mark, Done) else 0
    return _MARK_BYTES // 2 + _BYTES_A_RECORD * count

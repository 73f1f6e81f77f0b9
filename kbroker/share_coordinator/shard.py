"""One partition of `__share_group_state` as a state machine: the state of share partitions (KIP-932).

Owns the decisions of Kafka's ShareCoordinatorShard: fencing by state epoch and leader epoch, updates and snapshots, and
the deletion of the states of deleted topics. Pure: it does no I/O; the runtime (kbroker.coordination) writes and
answers. Like Kafka, it fences by the greatest epochs that it has seen. After an initialisation these may be greater
than the epochs in the state.

The keys of the timers: ("prune",) starts the next deletion of redundant records; ("cold",) writes the next snapshots of
states that have not been written for a long time; ("deleted",) writes the next tombstones of deleted topics.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kbroker.coordination.encoding import SPLIT_BYTES
from kbroker.coordination.shard import CoordinatorRecord, Outcome, Schedule
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.share_coordinator.config import ShareCoordinatorConfig
from kbroker.share_coordinator.persister import Change, Done, State, Summary
from kbroker.share_coordinator.share_partition_state import (
    SNAPSHOT,
    UNKNOWN,
    SharePartition,
    SharePartitionState,
    read_key,
    read_snapshot,
    read_update,
    snapshot_record,
    state_tombstone,
    update_record,
)
from kbroker.share_coordinator.state_batches import StateBatch, are_ranges, combined, in_order

log = logging.getLogger(__name__)

MOST_BATCHES: Final = 10_000
"""The maximum number of state batches of one share partition, and of one write.

No group may have more record locks than this number (group.share.max.partition.max.record.locks). Kafka limits only the
size of a record.
"""
_AT_ONCE: Final = 200
"""The maximum number of states to examine or delete before other work gets a turn."""
_RETRY_MS: Final = 500
_PRUNE, _COLD, _DELETED = ("prune",), ("cold",), ("deleted",)

Fault = tuple[ErrorCode, str | None]


class NewestSnapshots:
    """The offset of each share partition's newest snapshot, in order (Kafka: ShareCoordinatorOffsetsManager).

    All records before the oldest of these snapshots may be deleted: the topic is not compacted.
    """

    def __init__(self) -> None:
        self._offsets: OrderedDict[SharePartition, int] = OrderedDict()
        self.redundant_below = 0
        """The offset below which all records are redundant."""

    def add(self, place: SharePartition, offset: int, *, is_deletion: bool = False) -> None:
        """Record a snapshot, or the deletion of a share partition, at the log's next offset."""
        self._offsets[place] = offset
        self._offsets.move_to_end(place)
        self.redundant_below = next(iter(self._offsets.values()))
        if is_deletion:
            del self._offsets[place]


class _Held:
    """One share partition in memory: its state, the greatest epochs seen, and the updates since a snapshot."""

    __slots__ = ("leader_epoch", "state", "state_epoch", "updates")

    def __init__(self, state: SharePartitionState, leader_epoch: int, state_epoch: int) -> None:
        self.state = state
        self.leader_epoch = leader_epoch
        self.state_epoch = state_epoch
        self.updates = 0


class ShareShard:
    """The share partitions of one partition of the topic.

    `partitions_of` returns the number of partitions of a topic by its id, -1 if the topic does not exist. `prune`
    deletes the records below an offset at a given time.
    """

    def __init__(
        self, config: ShareCoordinatorConfig, partitions_of: Callable[[bytes], int], prune: Callable[[int, int], None]
    ) -> None:
        self._config = config
        self._partitions_of = partitions_of
        self._prune = prune
        self._topics: dict[bytes, dict[SharePartition, _Held]] = {}
        self._snapshots = NewestSnapshots()
        self._cold_left: Iterator[CoordinatorRecord | None] | None = None
        self._deleted_topics: dict[bytes, None] = {}
        self._warm = 0  # the number of states that are not cold (see `is_cold`)
        self._has_swept = False  # whether the first pass has searched for states without a topic
        self._unknown_types: set[int] = set()

    # -- replay

    steps_over_unreadable = False

    def replay(self, offset: int, _producer_id: int, key: bytes, value: bytes | None) -> None:
        kind, place = read_key(key)
        if place is None:
            if kind not in self._unknown_types:
                self._unknown_types.add(kind)
                log.warning("records of type %d in the topic of share groups' state are ignored", kind)
        elif kind == SNAPSHOT:
            self._replay_snapshot(place, value)
            self._snapshots.add(place, offset, is_deletion=value is None)
        elif value is not None:
            self._replay_update(place, value)

    def _replay_snapshot(self, place: SharePartition, value: bytes | None) -> None:
        if value is None:
            held_of_topic = self._topics.get(place.topic_id, {})
            removed = held_of_topic.pop(place, None)
            if removed is not None:
                self._warm -= not removed.state.is_cold
            if not held_of_topic:
                self._topics.pop(place.topic_id, None)
            return
        state = read_snapshot(value)
        held = self._held(place)
        if held is None:
            self._put(place, _Held(state, state.leader_epoch, state.state_epoch))
            return
        self._warm += held.state.is_cold - state.is_cold
        held.state = state
        held.leader_epoch = max(held.leader_epoch, state.leader_epoch)
        held.state_epoch = max(held.state_epoch, state.state_epoch)
        if held.updates >= self._config.updates_per_snapshot:
            held.updates = 0

    def _replay_update(self, place: SharePartition, value: bytes) -> None:
        held = self._held(place)
        state, leader_epoch = read_update(value, None if held is None else held.state)
        if held is None:
            held = _Held(state, leader_epoch, UNKNOWN)
            self._put(place, held)
        held.state = state
        held.leader_epoch = max(held.leader_epoch, leader_epoch)
        held.updates += 1

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Ignore the end of a transaction: the topic contains no transactions."""

    def _held(self, place: SharePartition) -> _Held | None:
        held_of_topic = self._topics.get(place.topic_id)
        return None if held_of_topic is None else held_of_topic.get(place)

    def _put(self, place: SharePartition, held: _Held) -> None:
        self._topics.setdefault(place.topic_id, {})[place] = held
        self._warm += not held.state.is_cold

    def on_loaded(self, _now_ms: int) -> Outcome:
        """Begin to serve."""
        config = self._config
        return Outcome(
            timers=[Schedule(_PRUNE, config.prune_interval_ms), Schedule(_COLD, config.cold_snapshot_interval_ms)]
        )

    def on_unloaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def states(self) -> Iterator[tuple[SharePartition, SharePartitionState]]:
        """Yield every share partition and its state."""
        for held_of_topic in self._topics.values():
            for place, held in held_of_topic.items():
                yield place, held.state

    # -- requests; the reply has the error

    def initialize(self, place: SharePartition, state_epoch: int, start_offset: int, now_ms: int) -> Outcome:
        """Begin a state, or replace it; reply with Done."""
        fault = _negative(("partition id", place.partition), ("state epoch", state_epoch))
        held = self._held(place)
        if fault is None and held is not None and held.state_epoch > state_epoch:
            fault = _fault(ErrorCode.FENCED_STATE_EPOCH)
        fault = fault or self._missing(place)
        if fault is not None:
            return Outcome(reply=Done(*fault))
        state = SharePartitionState(
            snapshot_epoch=0 if held is None else held.state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN if start_offset == UNKNOWN else 0,
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return Outcome(reply=Done(), records=[snapshot_record(place, state)])

    def read(self, place: SharePartition, leader_epoch: int, now_ms: int) -> Outcome:
        """Reply with a State. A new leader epoch is written, which fences earlier leaders."""
        fault = _negative(("partition id", place.partition), ("leader epoch", leader_epoch))
        held = self._held(place)
        if fault is None and held is None:
            text = "Read operation on uninitialized share partition not allowed."
            fault = ErrorCode.INVALID_REQUEST, text
        if fault is None and held is not None and held.leader_epoch > leader_epoch:
            fault = _fault(ErrorCode.FENCED_LEADER_EPOCH)
        fault = fault or self._missing(place)
        if fault is not None or held is None:
            code, message = fault or _fault(ErrorCode.INVALID_REQUEST)
            return Outcome(reply=State(code, message=message))
        state = held.state
        out = Outcome(reply=State(ErrorCode.NONE, state.state_epoch, state.start_offset, state.batches))
        if held.leader_epoch != leader_epoch:
            count = state.delivery_complete_count
            out.records.append(self._change(place, held, leader_epoch, state.start_offset, count, (), now_ms))
        return out

    def read_summary(self, place: SharePartition) -> Summary:
        """Return a share partition's epochs and offsets."""
        fault = _negative(("partition id", place.partition)) or self._missing(place)
        if fault is not None:
            return Summary(fault[0], message=fault[1])
        held = self._held(place)
        if held is None:
            return Summary(start_offset=UNKNOWN, delivery_complete_count=UNKNOWN)
        state = held.state
        return Summary(
            ErrorCode.NONE, state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count
        )

    def write(self, place: SharePartition, change: Change, now_ms: int) -> Outcome:
        """Change a state; reply with Done."""
        fault = _negative(
            ("partition id", place.partition),
            ("leader epoch", change.leader_epoch),
            ("state epoch", change.state_epoch),
        )
        held = self._held(place)
        if fault is None:
            fault = _write_fault(held, change.state_epoch, change.leader_epoch)
        fault = fault or self._missing(place)
        if fault is None and held is not None:
            fault = _batches_fault(held, change.batches)
        if fault is not None or held is None:
            return Outcome(reply=Done(*(fault or _fault(ErrorCode.INVALID_REQUEST))))
        state, count = held.state, change.delivery_complete_count
        if change.start_offset == state.start_offset:
            count = max(count, state.delivery_complete_count)
        elif change.start_offset < state.start_offset:
            count = state.delivery_complete_count
        start = max(change.start_offset, state.start_offset)
        record = self._change(place, held, state.leader_epoch, start, count, change.batches, now_ms)
        return Outcome(reply=Done(), records=[record])

    def delete(self, place: SharePartition) -> Outcome:
        """Delete a state; reply with Done, even if there is no state."""
        fault = _negative(("partition id", place.partition)) or self._missing(place)
        if fault is not None:
            return Outcome(reply=Done(*fault))
        records = [] if self._held(place) is None else [state_tombstone(place)]
        return Outcome(reply=Done(), records=records)

    def _change(
        self,
        place: SharePartition,
        held: _Held,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        now_ms: int,
    ) -> CoordinatorRecord:
        """Return the record of a change: an update, or a snapshot after a certain number of updates."""
        state = held.state
        if held.updates < self._config.updates_per_snapshot:
            new = in_order(batches, start_offset)
            return update_record(place, state.snapshot_epoch, leader_epoch, start_offset, delivery_complete_count, new)
        changed = SharePartitionState(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=delivery_complete_count,
            batches=combined(state.batches, batches, start_offset),
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return snapshot_record(place, changed)

    def _missing(self, place: SharePartition) -> Fault | None:
        """Return the error if the topic does not have the partition."""
        if self._partitions_of(place.topic_id) > place.partition:
            return None
        return _fault(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # -- periodic work

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        match key:
            case ("prune",):
                return self._prune_redundant()
            case ("cold",):
                return self._snapshot_cold(now_ms)
            case ("deleted",):
                return self._delete_more()
        raise ValueError(f"no timer {key!r}")

    def _prune_redundant(self) -> Outcome:
        """Delete the redundant records when the snapshots that replace them are committed."""
        offset = self._snapshots.redundant_below
        out = Outcome(timers=[Schedule(_PRUNE, self._config.prune_interval_ms)])
        if offset > 0:
            out.when_written(lambda _out, now_ms: self._prune(offset, now_ms))
        return out

    def _snapshot_cold(self, now_ms: int) -> Outcome:
        """Write snapshots of states that have not been written for a long time, so that older records become redundant.

        Each call handles a slice of the states. If all states are cold, their snapshots are the newest records, and
        nothing needs to be written. The first pass after a load also deletes states whose topic was deleted while no
        coordinator could delete them.
        """
        if self._cold_left is None:
            if self._warm == 0 and self._has_swept:
                return Outcome(timers=[Schedule(_COLD, self._config.cold_snapshot_interval_ms)])
            self._cold_left = self._cold(list(self._topics), now_ms, snapshots=self._warm > 0)
            self._has_swept = True
        out, size = Outcome(atomic=False), 0
        for _ in range(_AT_ONCE):
            record = next(self._cold_left, _END)
            if record is _END:
                self._cold_left = None
                break
            if record is not None:
                out.records.append(record)
                size += len(record.value or b"")
                if size > SPLIT_BYTES:
                    break
        delay = self._config.cold_snapshot_interval_ms if self._cold_left is None else 0
        out.timers.append(Schedule(_COLD, delay))
        return out

    def _cold(self, topic_ids: Iterable[bytes], now_ms: int, *, snapshots: bool) -> Iterator[CoordinatorRecord | None]:
        """Yield for each state its snapshot, or None if `snapshots` is false or the state was written recently.

        For a state without a topic, yield a tombstone.
        """
        for topic_id in topic_ids:
            is_gone = self._partitions_of(topic_id) < 0
            for place in list(self._topics.get(topic_id, ())):
                held = self._held(place)
                if held is not None and is_gone:
                    yield state_tombstone(place)
                elif held is None or not snapshots or self._is_fresh(held, now_ms):
                    yield None
                else:
                    state = replace(held.state, snapshot_epoch=held.state.snapshot_epoch + 1, written_ms=now_ms)
                    yield snapshot_record(place, state)

    def _is_fresh(self, held: _Held, now_ms: int) -> bool:
        return now_ms - held.state.written_ms < self._config.cold_snapshot_interval_ms

    def on_topics_deleted(self, topic_ids: Iterable[bytes]) -> Outcome:
        """Delete the states of deleted topics."""
        found = [topic_id for topic_id in topic_ids if topic_id in self._topics]
        if not found:
            return Outcome()
        self._deleted_topics.update(dict.fromkeys(found))
        return self._delete_more()

    def _delete_more(self) -> Outcome:
        """Write the next tombstones. The replay of these records deletes the states."""
        out = Outcome(atomic=False)
        for topic_id in list(self._deleted_topics):
            places = self._topics.get(topic_id)
            if places is None:
                del self._deleted_topics[topic_id]
                continue
            for place in places:
                out.records.append(state_tombstone(place))
                if len(out.records) == _AT_ONCE:
                    break
            if len(out.records) == _AT_ONCE:
                break
        if out.records:
            out.when_written(
                lambda done, _now: done.timers.append(Schedule(_DELETED, 0)),
                lambda done, _now: done.timers.append(Schedule(_DELETED, _RETRY_MS)),
            )
        return out


_END: Final = CoordinatorRecord(b"", None)


def _fault(code: ErrorCode) -> Fault:
    return code, DEFAULT_MESSAGES.get(code)


def _negative(*values: tuple[str, int]) -> Fault | None:
    """Return an error that names the first negative value."""
    for name, value in values:
        if value < 0:
            return ErrorCode.INVALID_REQUEST, f"The {name} cannot be a negative number."
    return None


def _write_fault(held: _Held | None, state_epoch: int, leader_epoch: int) -> Fault | None:
    if held is None:
        return ErrorCode.INVALID_REQUEST, "Write operation on uninitialized share partition not allowed."
    if held.leader_epoch > leader_epoch:
        return _fault(ErrorCode.FENCED_LEADER_EPOCH)
    if held.state_epoch > state_epoch:
        return _fault(ErrorCode.FENCED_STATE_EPOCH)
    return None


def _batches_fault(held: _Held, batches: Sequence[StateBatch]) -> Fault | None:
    """Return the error for invalid ranges, and for more batches than a leader can have."""
    if not are_ranges(batches):
        return ErrorCode.INVALID_REQUEST, "A state batch ends before it begins."
    if len(held.state.batches) + len(batches) > 2 * MOST_BATCHES:
        return ErrorCode.UNKNOWN_SERVER_ERROR, f"A share partition has at most {MOST_BATCHES} state batches."
    return None

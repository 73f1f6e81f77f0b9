"""What must hold after every step, on the brokers' own objects (docs/replication.md: R1 to R5, R8 to R16; S7).

Owns what was seen of each replica and each partition. After a step, only the broker that ran is checked, and only its
changed replicas. Batches are compared by their bytes in the files. Changes of partition states are judged in states.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.coordination.partitioning import partition_for
from kbroker.protocol.records import iter_batches
from tests.simulation.brokers import SimBroker
from tests.simulation.loop import Life
from tests.simulation.states import Key, States
from tests.simulation.violation import Violation

_READ_BYTES = 1 << 20
Batch = tuple[int, int, int, int]
"""(first offset, last offset, leader epoch, checksum)"""


@dataclass
class Replica:
    """The last known state of one broker's replica."""

    number: int = 0
    """The number of the broker's life."""
    log: Any = None
    start: int = 0
    end: int = 0
    mark: int = 0
    epoch: int = -1
    partition_epoch: int = -1
    leading: bool = False
    truncations: int = 0
    batches: list[Batch] = field(default_factory=list)
    """The batches in its log from `start` on."""
    judged: int = 0
    """Its batches below this offset have been compared with the committed ones."""


@dataclass
class Committed:
    """What is known of a partition, whichever broker leads it."""

    end: int = 0
    """The highest high watermark of any leader."""
    batches: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """First offset -> (last offset, leader epoch, checksum)."""
    leaders: dict[int, int] = field(default_factory=dict)
    """Leader epoch -> its leader."""
    appended: dict[tuple[int, int], tuple[int, int, Batch | None]] = field(default_factory=dict)
    """(first offset, leader epoch) -> (last offset, checksum, the batch before it)."""


@dataclass
class Known:
    """What one broker's process last knew."""

    number: int = 0
    controller_epoch: int = 0
    state: Any = None


class Invariants:
    """Checks the brokers; raises Violation. `unclean` are topics that may lose records instead of waiting."""

    def __init__(self, brokers: dict[int, SimBroker], states: States, unclean: Collection[str] = ()) -> None:
        self._brokers = brokers
        self.states = states
        self._unclean = unclean
        self.replicas: dict[tuple[int, Key], Replica] = {}
        self.partitions: dict[Key, Committed] = {}
        self._known: dict[int, Known] = {}
        self.checks = 0

    def after(self, life: Life | None) -> None:
        """Check the broker that has just run."""
        if self.states.violation is not None:
            raise self.states.violation
        if life is None or life.broker is None or life.dying:
            return
        broker: SimBroker = life.broker
        node = broker.node
        if node is None:
            return
        self._judge_known(broker.node_id, life.number, node)
        for (topic, index), partition in node.replicas._partitions.items():
            log = partition.log
            key = topic, index, partition.topic_id
            seen = self.replicas.get((broker.node_id, key))
            if (
                seen is None
                or seen.end != log.log_end_offset
                or seen.mark != log.high_watermark
                or seen.epoch != partition.leader_epoch
                or seen.leading != partition.leading
                or seen.partition_epoch != partition.leadership.partition_epoch
                or seen.log is not log
            ):
                self._changed(broker.node_id, life.number, key, partition, seen)

    # --- what a broker was told

    def _judge_known(self, broker: int, number: int, node: Any) -> None:
        """Check that requests of an older controller, or with an older epoch, change nothing."""
        epoch, state = node.replica_manager.controller_epoch, node.member.state
        known = self._known.get(broker)
        if known is None or known.number != number:
            self._known[broker] = Known(number, epoch, state)
            return
        if epoch < known.controller_epoch:
            raise Violation(f"R15: {broker} goes back from controller epoch {known.controller_epoch} to {epoch}")
        known.controller_epoch = epoch
        if state is known.state:
            return
        before, known.state = known.state, state
        if before.topics is state.topics:
            return
        for name, topic in state.topics.items():
            old = before.topics.get(name)
            if old is topic or old is None or old.topic_id != topic.topic_id:
                continue
            for index, (was, now) in enumerate(zip(old.partitions, topic.partitions, strict=False)):
                deleted = not now.replicas  # reported as deleted before other partitions of the topic
                if not deleted and (now.leader_epoch, now.partition_epoch) < (was.leader_epoch, was.partition_epoch):
                    raise Violation(f"R15: {broker} is told {now} of {name}-{index} after {was}")

    # --- one replica

    def _changed(self, broker: int, number: int, key: Key, partition: Any, seen: Replica | None) -> None:
        self.checks += 1
        log = partition.log
        if seen is None:
            seen = self.replicas[broker, key] = Replica()
        name = f"{key[0]}-{key[1]}"
        start, end, mark = log.log_start_offset, log.log_end_offset, log.high_watermark
        if not start <= mark <= end:
            raise Violation(f"S7: {name} on {broker}: start {start}, high watermark {mark}, end {end}")
        anew = seen.number != number or seen.log is not log
        clean = key[0] not in self._unclean
        if not anew:
            self._judge_steps(name, broker, partition, seen, clean=clean)
        committed = self.partitions.setdefault(key, Committed())
        self._follow_log(name, broker, partition, seen, committed, anew=anew)
        if partition.leading:
            self._judge_leader(name, broker, key, partition, seen, committed, clean=clean)
            if not anew and mark > seen.mark:
                self._judge_commit(name, broker, key, partition, seen, clean=clean)
        if clean:
            self._compare(name, broker, seen, committed, mark)
        seen.number, seen.log, seen.start, seen.end, seen.mark = number, log, start, end, mark
        seen.epoch, seen.leading = partition.leader_epoch, partition.leading
        seen.partition_epoch = partition.leadership.partition_epoch
        if clean:
            self._judge_in_sync(name, key, committed)

    def _judge_steps(self, name: str, broker: int, partition: Any, seen: Replica, *, clean: bool) -> None:
        """Check that no value of a replica goes back while its process lives."""
        mark, epoch = partition.log.high_watermark, partition.leader_epoch
        if clean and mark < seen.mark:
            raise Violation(f"R14: {name} on {broker}: the high watermark goes back from {seen.mark} to {mark}")
        version = partition.leadership.partition_epoch
        if epoch < seen.epoch or version < seen.partition_epoch:
            raise Violation(
                f"R15: {name} on {broker} goes back from leader epoch {seen.epoch} to {epoch}, "
                f"from partition epoch {seen.partition_epoch} to {version}"
            )

    def _follow_log(
        self, name: str, broker: int, partition: Any, seen: Replica, committed: Committed, *, anew: bool
    ) -> None:
        """Record what was appended or truncated since the last check."""
        log = partition.log
        end = log.log_end_offset
        if anew:
            seen.batches, seen.judged = [], 0
        batches = seen.batches
        # A truncated part may have been rewritten in the same step: it is read again from the high watermark on.
        kept = end if log.truncations == seen.truncations else min(end, seen.mark)
        seen.truncations = log.truncations
        while batches and batches[-1][1] >= kept:
            batches.pop()
        at = batches[-1][1] + 1 if batches else log.log_start_offset
        while at < end:
            piece = log.read(at, _READ_BYTES, end, min_one=True)
            view = piece.view()
            found = at
            for position, header in iter_batches(view):
                if header.base_offset < at:
                    continue
                if header.base_offset != found:
                    raise Violation(f"R11: {name} on {broker}: after {found} comes {header.base_offset}")
                checksum = crc32(view[position : position + header.size])
                batch = header.base_offset, header.last_offset, header.leader_epoch, checksum
                self._judge_batch(name, broker, partition, batches[-1] if batches else None, batch, committed)
                if not anew and log.leader_epochs.epoch_for_offset(header.base_offset) != header.leader_epoch:
                    epochs = log.leader_epochs.entries
                    raise Violation(f"R9: {name} on {broker}: {batch} is not in the epochs {epochs}")
                batches.append(batch)
                found = header.last_offset + 1
            if found == at:
                heads = [(head.base_offset, head.last_offset) for _, head in iter_batches(view)]
                raise Violation(
                    f"S7: {name} on {broker}: nothing can be read at {at}, and its end is {end}: "
                    f"{piece}, {heads}, segments {log.segments.bases}, {batches[-3:]}"
                )
            at = found

    def _judge_batch(
        self, name: str, broker: int, partition: Any, before: Batch | None, batch: Batch, committed: Committed
    ) -> None:
        """Check that two logs with a batch of the same offset and epoch are equal up to it."""
        base, last, epoch, checksum = batch
        if before is not None and epoch < before[2]:
            raise Violation(f"R3: {name} on {broker}: epoch {epoch} after {before[2]}")
        known = committed.appended.get((base, epoch))
        if known is None:
            if not (partition.leading and partition.leader_epoch == epoch):
                raise Violation(f"R3: {name} on {broker}: nobody has appended {batch} as leader")
            committed.appended[base, epoch] = last, checksum, before
            return
        if known[:2] != (last, checksum):
            raise Violation(f"R10: {name} on {broker}: {batch}, elsewhere {known}")
        if before is not None and known[2] is not None and known[2] != before:
            raise Violation(f"R10: {name} on {broker}: {batch} follows {before}, elsewhere {known[2]}")

    def _judge_leader(
        self, name: str, broker: int, key: Key, partition: Any, seen: Replica, committed: Committed, *, clean: bool
    ) -> None:
        epoch, log = partition.leader_epoch, partition.log
        other = committed.leaders.setdefault(epoch, broker)
        if other != broker:
            raise Violation(f"R3: {other} and {broker} lead {name} in epoch {epoch}")
        if log.leader_epochs.latest != epoch:
            raise Violation(f"R9: {broker} leads {name} in {epoch}, and knows the epochs {log.leader_epochs.entries}")
        self._judge_told(name, broker, key, partition)
        if clean and (epoch != seen.epoch or not seen.leading):
            newest = self.states.newest(key)
            # A leader that was frozen, or learns late, may be behind now; the leader of the newest epoch must have
            # everything.
            if newest is not None and newest.leader_epoch == epoch and log.log_end_offset < committed.end:
                end = log.log_end_offset
                raise Violation(f"R1: {broker} leads {name} in {epoch} from {end}, committed is {committed.end}")
        if log.high_watermark > committed.end:
            committed.end = log.high_watermark

    def _judge_told(self, name: str, broker: int, key: Key, partition: Any) -> None:
        """Check that the in-sync replicas that a leader uses were written, with this version and for its epoch."""
        leadership = partition.leadership
        written = self.states.history.get(key, {}).get(leadership.partition_epoch)
        told = broker, partition.leader_epoch, leadership.isr
        if written is None or told != (written.leader, written.leader_epoch, frozenset(written.isr)):
            version = leadership.partition_epoch
            raise Violation(f"R8: {name} is led by {told} at partition epoch {version}, which was {written}")

    def _judge_commit(self, name: str, broker: int, key: Key, partition: Any, seen: Replica, *, clean: bool) -> None:
        """Check that every in-sync replica has what is newly committed, and that there are enough of them."""
        mark, leadership = partition.log.high_watermark, partition.leadership
        enough = min(partition.log.config.min_insync_replicas, len(leadership.replicas))
        if len(leadership.isr) < enough:
            in_sync = sorted(leadership.isr)
            raise Violation(f"R5: {name} on {broker}: {mark} is committed with {in_sync} in sync, of {enough}")
        state = self.states.newest(key)
        if not clean or state is None:
            return
        new = _between(seen.batches, seen.mark, mark)
        for each in state.isr:
            replica = self.replicas.get((each, key))
            theirs = [] if replica is None else _between(replica.batches, seen.mark, mark)
            if theirs != new:
                epoch = partition.leader_epoch
                raise Violation(
                    f"R4: {name}: {broker} commits {new} in epoch {epoch}, and {each}, in sync in "
                    f"{state.leader_epoch}, has {theirs}"
                )

    def _compare(self, name: str, broker: int, seen: Replica, committed: Committed, mark: int) -> None:
        """Compare with the other replicas below their high watermarks."""
        first = bisect_left(seen.batches, (seen.judged, -1, -1, -1))
        for base, last, epoch, checksum in seen.batches[first:]:
            if last >= mark:
                break
            known = committed.batches.setdefault(base, (last, epoch, checksum))
            if known != (last, epoch, checksum):
                raise Violation(
                    f"R2: {name} on {broker}: {base}..{last} of epoch {epoch}, elsewhere ..{known[0]} of {known[1]}"
                )
            seen.judged = last + 1

    # --- who is in sync

    def _judge_in_sync(self, name: str, key: Key, committed: Committed) -> None:
        """Check that every in-sync replica has what is committed."""
        state = self.states.newest(key)
        if state is None:
            return
        for broker in state.isr:
            seen = self.replicas.get((broker, key))
            if seen is not None and seen.end < committed.end:
                raise Violation(f"R1: {name}: {broker} is in sync and ends at {seen.end}, committed is {committed.end}")

    def may_come_in(self, key: Key, broker: int) -> str:
        """Return why a broker must not become in sync: it lacks committed records, or its leader's epoch."""
        seen, committed, state = self.replicas.get((broker, key)), self.partitions.get(key), self.states.newest(key)
        end = 0 if seen is None else seen.end
        if committed is not None and key[0] not in self._unclean and end < committed.end:
            return f"{broker} ends at {end}, committed is {committed.end}"
        node = None if state is None or state.leader not in self._brokers else self._brokers[state.leader].node
        led = None if node is None else node.replicas.get(key[:2])
        if state is None or led is None or not led.leading or led.leader_epoch != state.leader_epoch:
            return ""
        begins = led.leadership.epoch_start
        return f"{broker} ends at {end}, leader epoch {state.leader_epoch} begins at {begins}" if end < begins else ""

    # --- what clients are told

    def acknowledged(self, topic: str, index: int, base: int, count: int) -> None:
        """Note that records were acknowledged with acks=all: they are committed, as one batch."""
        for key, committed in self.partitions.items():
            if key[:2] == (topic, index):
                known = committed.batches.get(base)
                if known is not None and known[0] == base + count - 1:
                    return
        raise Violation(f"R1: {base} to {base + count - 1} of {topic}-{index} are acknowledged and not committed")

    def read(self, topic: str, index: int, offset: int) -> None:
        """Note that a consumer read a record: it is committed."""
        if not any(key[:2] == (topic, index) and offset < each.end for key, each in self.partitions.items()):
            raise Violation(f"R4: {offset} of {topic}-{index} was read and is not committed")

    def coordinates(self, broker: int, group: str) -> int:
        """Return the epoch in which a broker coordinates a group.

        -1 if it does not, or if an election is in progress.
        """
        if broker not in self._brokers:
            return -1
        index = partition_for(group, int(self._brokers[broker].settings["offsets.topic.num.partitions"]))
        return self.leads(broker, OFFSETS_TOPIC, index)

    def leads(self, broker: int, topic: str, index: int) -> int:
        """Return the epoch in which a broker leads a partition; -1 if it does not, or if an election is in progress."""
        node = self._brokers[broker].node if broker in self._brokers else None
        if node is None:
            return -1
        partition = node.replicas.get((topic, index))
        if partition is None or not partition.leading:
            return -1
        state = self.states.newest((topic, index, partition.topic_id))
        newest = state is not None and state.leader == broker and state.leader_epoch == partition.leader_epoch
        return int(partition.leader_epoch) if newest else -1

    # --- at the end

    def _hosts(self, key: Key) -> tuple[int, ...]:
        return self.states.assigned(key)

    def out_of_sync(self) -> str:
        """Return which partition lacks a leader or an in-sync replica; empty if none does."""
        for key in self.partitions:
            state, replicas = self.states.newest(key), self._hosts(key)
            if self.states.is_moving(key):
                return f"{key} is being moved"
            if replicas and (state is None or set(state.isr) != set(replicas) or state.leader < 0):
                return f"{key} on {replicas} is at {state}"
        return ""

    def whole(self) -> str:
        """Return what is not yet as it must be once all faults are over; empty if nothing is missing."""
        if out := self.out_of_sync():
            return out
        if left := self._left_over():
            return left
        for key in self.partitions:
            found = [self.replicas.get((each, key)) for each in self._hosts(key)]
            ends = {None if each is None else (each.end, each.mark) for each in found}
            if len(ends) > 1 or any(end is None or end[0] != end[1] for end in ends):
                return f"{key} ends at {ends}"
        return ""

    def _left_over(self) -> str:
        """Return which broker still has a replica that was moved away or deleted; empty if none does."""
        for number, broker in self._brokers.items():
            hosted = {} if broker.node is None else broker.node.replicas._partitions
            for (topic, index), partition in hosted.items():
                if number not in self._hosts((topic, index, partition.topic_id)):
                    return f"{topic}-{index} of {partition.topic_id.hex()} is still on {number}"
        return ""

    def judge_files(self) -> int:
        """Compare the replicas batch by batch; return the number of batches."""
        count = 0
        for key in self.partitions:
            logs = [self.replicas[each, key].batches for each in self._hosts(key)]
            if any(each != logs[0] for each in logs[1:]):
                raise Violation(f"R13: the logs of {key} differ at the end")
            count += len(logs[0]) if logs else 0
        return count


def _between(batches: list[Batch], start: int, end: int) -> list[Batch]:
    """Return the batches that begin at or above `start` and end below `end`."""
    first = bisect_left(batches, (start, -1, -1, -1))
    last = bisect_left(batches, (end, -1, -1, -1))
    return batches[first:last]

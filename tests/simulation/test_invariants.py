"""The simulator detects brokers that break a promise: each promise is broken once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from struct import pack_into
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.controller.znodes import LeaderAndIsr
from kbroker.protocol.records import build_batch
from tests.simulation.invariants import Invariants
from tests.simulation.states import States, WatchedEnsemble
from tests.simulation.violation import Violation

ID = b"0123456789abcdef"
KEY = "t", 0, ID


class Log:
    """The part of a log that is checked: batches of one record each."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.high_watermark = self.log_start_offset = self.truncations = 0
        self.leader_epochs = SimpleNamespace(latest=-1, entries=[], epoch_for_offset=self._epoch)
        self.epochs: list[int] = []
        self.segments = SimpleNamespace(bases=[0])
        self.config = SimpleNamespace(min_insync_replicas=2)

    def _epoch(self, offset: int) -> int:
        return self.epochs[offset]

    @property
    def log_end_offset(self) -> int:
        return len(self.batches)

    def append(self, value: bytes, epoch: int) -> None:
        data = bytearray(build_batch([(1, None, value, ())]))
        pack_into(">q", data, 0, len(self.batches))
        pack_into(">i", data, 12, epoch)
        self.batches.append(bytes(data))
        self.epochs.append(epoch)
        self.leader_epochs.latest = max(epoch, self.leader_epochs.latest)

    def cut(self, offset: int) -> None:
        del self.batches[offset:], self.epochs[offset:]
        self.truncations += 1

    def read(self, at: int, _size: int, _end: int, *, min_one: bool) -> Any:
        assert min_one
        return SimpleNamespace(view=lambda: memoryview(b"".join(self.batches[at:])))


@dataclass
class Partition:
    """The part of a replica that is checked."""

    log: Log = field(default_factory=Log)
    topic_id: bytes = ID
    leader_epoch: int = 0
    leading: bool = False
    leadership: Any = None


class Brokers:
    """Two brokers with a replica each, of which the first leads in epoch 0; every change is checked."""

    def __init__(self, unclean: tuple[str, ...] = ()) -> None:
        self.states = States(WatchedEnsemble(), unclean)
        self.brokers: dict[int, Any] = {each: self._broker(each) for each in (1, 2)}
        self.invariants = Invariants(self.brokers, self.states, unclean)
        self.write(0, LeaderAndIsr(1, 0, (1, 2), 1))
        for each in (1, 2):
            self.hosted(each).leadership = SimpleNamespace(
                partition_epoch=0, isr=frozenset((1, 2)), replicas=(1, 2), epoch_start=0
            )
        self.hosted(1).leading = True
        self.log(1).leader_epochs.latest = 0
        self.look(1)
        self.look(2)

    def _broker(self, number: int) -> Any:
        hosted = {("t", 0): Partition()}
        node = SimpleNamespace(
            replicas=SimpleNamespace(_partitions=hosted, get=hosted.get),
            replica_manager=SimpleNamespace(controller_epoch=1),
            member=SimpleNamespace(state=ClusterState("c")),
        )
        return SimpleNamespace(node_id=number, node=node, tree=None)

    def hosted(self, broker: int) -> Partition:
        found: Partition = self.brokers[broker].node.replicas._partitions["t", 0]
        return found

    def log(self, broker: int) -> Log:
        return self.hosted(broker).log

    def write(self, version: int, state: LeaderAndIsr) -> None:
        self.states._newest[KEY] = self.states.history.setdefault(KEY, {})[version] = state

    def elect(self, leader: int, epoch: int, *isr: int) -> None:
        """Make a broker lead in another epoch, and know it."""
        version = len(self.states.history[KEY])
        self.write(version, LeaderAndIsr(leader, epoch, isr, 1))
        for each in (1, 2):
            partition = self.hosted(each)
            partition.leader_epoch, partition.leading = epoch, each == leader
            partition.leadership = SimpleNamespace(
                partition_epoch=version,
                isr=frozenset(isr),
                replicas=(1, 2),
                epoch_start=self.log(leader).log_end_offset,
            )
        self.log(leader).leader_epochs.latest = epoch

    def look(self, broker: int, number: int = 1) -> None:
        life: Any = SimpleNamespace(broker=self.brokers[broker], dying=False, number=number)
        self.invariants.after(life)

    def produce(self, *values: bytes) -> None:
        """Have records appended, copied and committed."""
        epoch = self.hosted(1).leader_epoch
        for value in values:
            self.log(1).append(value, epoch)
            self.look(1)
            self.log(2).append(value, epoch)
            self.look(2)
            self.log(1).high_watermark += 1
            self.look(1)


@pytest.fixture
def brokers() -> Brokers:
    made = Brokers()
    made.produce(b"a", b"b")
    return made


def test_what_replication_does_is_not_complained_of(brokers: Brokers) -> None:
    brokers.log(2).high_watermark = 2
    brokers.look(2)
    brokers.log(1).append(b"only 1 has it", 0)
    brokers.look(1)
    brokers.elect(2, 1, 2)
    brokers.look(2)
    brokers.log(2).append(b"other", 1)
    brokers.look(2)
    brokers.log(1).cut(2)
    brokers.look(1)
    brokers.log(1).append(b"other", 1)
    brokers.look(1)
    brokers.invariants.acknowledged("t", 0, 1, 1)
    brokers.invariants.read("t", 0, 1)
    assert not brokers.invariants.may_come_in(KEY, 1)
    brokers.look(1, number=2)


def broken(brokers: Brokers, rule: str, broker: int) -> None:
    with pytest.raises(Violation, match=rule):
        brokers.look(broker)


def test_r1_a_new_leader_lacks_what_is_committed(brokers: Brokers) -> None:
    brokers.log(2).cut(1)
    brokers.log(2).high_watermark = 1
    brokers.states._newest.pop(KEY)
    brokers.look(2)
    brokers.elect(2, 1, 2)
    broken(brokers, "R1", 2)


def test_r1_somebody_in_sync_lacks_what_is_committed(brokers: Brokers) -> None:
    brokers.log(2).cut(1)
    broken(brokers, "R1", 2)


def test_r1_an_acknowledgement_of_what_is_not_committed(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.look(1)
    with pytest.raises(Violation, match="R1"):
        brokers.invariants.acknowledged("t", 0, 2, 1)


def test_r2_other_bytes_below_the_high_watermark(brokers: Brokers) -> None:
    brokers.elect(2, 1, 2)
    brokers.log(2).config.min_insync_replicas = 1
    brokers.log(2).cut(1)
    brokers.log(2).append(b"b", 1)
    brokers.log(2).high_watermark = 2
    broken(brokers, "R2", 2)


def test_r3_two_leaders_of_an_epoch(brokers: Brokers) -> None:
    brokers.hosted(2).leading = True
    broken(brokers, "R3", 2)


def test_r3_an_epoch_that_goes_back(brokers: Brokers) -> None:
    brokers.elect(1, 1, 1, 2)
    brokers.log(1).append(b"c", 1)
    brokers.look(1)
    brokers.log(1).append(b"d", 0)
    broken(brokers, "R3", 1)


def test_r3_a_batch_that_no_leader_has_appended(brokers: Brokers) -> None:
    brokers.log(2).append(b"c", 0)
    broken(brokers, "R3", 2)


def test_r4_a_leader_that_was_replaced_commits_what_its_successor_lacks(brokers: Brokers) -> None:
    brokers.write(1, LeaderAndIsr(2, 1, (2,), 1))
    brokers.log(1).append(b"c", 0)
    brokers.log(1).high_watermark = 3
    broken(brokers, "R4", 1)


def test_r4_a_consumer_reads_what_is_not_committed(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.look(1)
    with pytest.raises(Violation, match="R4"):
        brokers.invariants.read("t", 0, 2)


def test_r5_too_few_in_sync_commit_something(brokers: Brokers) -> None:
    brokers.elect(1, 1, 1)
    brokers.look(1)
    brokers.log(1).append(b"c", 1)
    brokers.log(1).high_watermark = 3
    broken(brokers, "R5", 1)


def test_r7_who_lacks_what_is_committed_or_the_leaders_epoch_may_not_come_in(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.look(1)
    brokers.elect(1, 1, 1)
    brokers.look(1)
    assert brokers.invariants.may_come_in(KEY, 2) == "2 ends at 2, leader epoch 1 begins at 3"
    brokers.invariants.partitions[KEY].end = 3
    assert brokers.invariants.may_come_in(KEY, 2) == "2 ends at 2, committed is 3"


def test_r8_a_leader_counts_on_in_sync_replicas_that_nobody_wrote(brokers: Brokers) -> None:
    brokers.hosted(1).leadership = SimpleNamespace(partition_epoch=1, isr=frozenset((1,)), replicas=(1, 2))
    broken(brokers, "R8", 1)


def test_r9_a_leader_that_has_not_noted_its_epoch(brokers: Brokers) -> None:
    brokers.elect(1, 1, 1, 2)
    brokers.log(1).leader_epochs.latest = 0
    broken(brokers, "R9", 1)


def test_r9_a_batch_that_is_not_in_the_epochs(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.log(1).epochs[-1] = -1
    broken(brokers, "R9", 1)


def test_r10_a_follower_that_has_other_bytes(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.look(1)
    brokers.log(2).append(b"C", 0)
    broken(brokers, "R10", 2)


def test_r10_a_follower_that_was_not_cut_where_it_parts(brokers: Brokers) -> None:
    brokers.log(1).append(b"only 1 has it", 0)
    brokers.look(1)
    brokers.elect(2, 1, 2)
    brokers.log(2).append(b"c", 1)
    brokers.log(2).append(b"d", 1)
    brokers.look(2)
    brokers.log(1).append(b"d", 1)
    broken(brokers, "R10", 1)


def test_r11_offsets_with_a_hole(brokers: Brokers) -> None:
    brokers.log(1).append(b"c", 0)
    brokers.log(1).append(b"d", 0)
    read = brokers.log(1).read
    brokers.log(1).read = lambda at, *rest, **more: read(at + 1, *rest, **more)  # type: ignore[method-assign]
    broken(brokers, "R11", 1)


def test_r13_logs_that_differ_at_the_end(brokers: Brokers) -> None:
    brokers.states._assignments["t"] = SimpleNamespace(topic_id=ID, replicas={0: (1, 2)})  # type: ignore[assignment]
    assert brokers.invariants.judge_files() == 2
    brokers.log(1).append(b"c", 0)
    brokers.look(1)
    with pytest.raises(Violation, match="R13"):
        brokers.invariants.judge_files()


def test_a_replica_that_was_moved_away_and_is_still_there(brokers: Brokers) -> None:
    brokers.states._assignments["t"] = SimpleNamespace(topic_id=ID, replicas={0: (1, 2)})  # type: ignore[assignment]
    assert not brokers.invariants._left_over()
    brokers.states._assignments["t"].replicas = {0: (1,)}  # type: ignore[misc]
    assert "is still on 2" in brokers.invariants._left_over()


def test_r14_a_high_watermark_that_goes_back(brokers: Brokers) -> None:
    brokers.log(2).high_watermark = 2
    brokers.look(2)
    brokers.log(2).high_watermark = 1
    broken(brokers, "R14", 2)


def test_r15_an_older_controller_is_listened_to(brokers: Brokers) -> None:
    brokers.brokers[1].node.replica_manager.controller_epoch = 0
    broken(brokers, "R15", 1)


@pytest.mark.parametrize("which", ["leader_epoch", "partition_epoch"])
def test_r15_a_replica_does_as_it_was_told_before(brokers: Brokers, which: str) -> None:
    brokers.elect(2, 1, 2)
    brokers.look(1)
    partition = brokers.hosted(1)
    if which == "leader_epoch":
        partition.leader_epoch = 0
    else:
        partition.leadership.partition_epoch = 0
    broken(brokers, "R15", 1)


def test_r15_metadata_that_goes_back(brokers: Brokers) -> None:
    member = brokers.brokers[1].node.member
    newer = PartitionState((1, 2), (1, 2), 1, 3, 4)

    def told(state: PartitionState, topic_id: bytes = ID) -> None:
        member.state = replace(member.state, topics={"t": TopicState("t", topic_id, (state,))})

    told(newer)
    brokers.look(1)
    told(replace(newer, partition_epoch=5))
    brokers.look(1)
    told(replace(newer, leader_epoch=2))
    broken(brokers, "R15", 1)
    told(replace(newer, leader_epoch=0), topic_id=ID[::-1])
    brokers.look(1)


def test_s7_a_high_watermark_beyond_the_end(brokers: Brokers) -> None:
    brokers.log(2).high_watermark = 3
    broken(brokers, "S7", 2)


def test_a_topic_that_may_lose_records_is_held_to_the_rest() -> None:
    brokers = Brokers(unclean=("t",))
    brokers.produce(b"a", b"b")
    brokers.elect(2, 1, 2)
    brokers.log(2).cut(0)
    brokers.log(2).high_watermark = 0
    brokers.look(2)
    brokers.log(2).append(b"other", 1)
    brokers.look(2)
    brokers.log(1).append(b"other", 1)
    broken(brokers, "R", 1)

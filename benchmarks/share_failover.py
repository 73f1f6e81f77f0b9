"""The fail-over of a partition's leader with 10,000 records of a share group in flight: kbroker's cluster of three
processes on a ZooKeeper, and Apache Kafka's of three combined KRaft nodes, in turn on the same work in one run.

A member acquires 10,000 records of a topic with three replicas and min.insync.replicas=2, and accepts every second
one, or none. Then the leader is stopped (SIGTERM), or killed (SIGKILL; the sessions of brokers last 6 s on both sides).
Locks are not stored, so the new leader delivers what was in flight again. Times count from the signal:

    first      until the member gets one of its records again
    all        until it has got all of them again
    leader     until the member is told of the new leader
    pause      the longest time in which a member of another group, which takes and accepts ten records at a time, hears
               of no acceptance that was stored

The members speak raw, with the same pauses on both sides: after an error or a closed connection each asks another
broker for the leader every 20 ms, and opens a new session there. They wait 500 ms for records in a ShareFetch, as
Java's consumer does.

A leader of Apache Kafka that stops tells a member that waits for room within its locks nothing until its connection
ends, which is what `first` and `leader` show then; a member that works hears earlier, which is what `pause` shows.

The roles are apart: the broker that goes leads the topic; the controller (of Apache Kafka: the quorum's leader)
coordinates the groups; the third keeps their share state. In the cases "with its state" the broker that goes has all
roles but the controller's. Before each fail-over the brokers lead what they prefer, a third of the internal partitions
each. What has not come after 30 s counts as 30 s: Apache Kafka 4.4.0 delivered nothing in the cases "with its state".

Checks: what was accepted never comes again; no delivery count rises by more than 1. Prints a table with ratios and
saves it under benchmarks/results/; asserts no times.

    python -m benchmarks.share_failover [--rounds 3] [--only kbroker|kafka]
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.queues import ACCEPT, Member, accepted, fill
from benchmarks.ratios import SUBJECTS, Figures, Row, Work, alternate, save, table
from benchmarks.subjects import TunedKafka
from compat_tests.harness.clusters import Cluster, KBrokerCluster
from compat_tests.harness.kraft import KRaftCluster, KRaftNode
from compat_tests.harness.parts import fetch
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages import share_acknowledge as own
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.share_fetch import AcknowledgementBatch, ShareFetchResponse

IN_FLIGHT, MORE, A_STEP = 10_000, 40_000, 10
RETRY_S, STEP_S, WAIT_S = 0.02, 0.005, 90
SETTINGS = {
    "offsets.topic.num.partitions": "50",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.max.partition.max.record.locks": str(IN_FLIGHT),
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "2000",
    "zookeeper.session.timeout.ms": "6000",
}
GROUP = {"share_record_lock_duration_ms": "60000", "share_partition_max_record_locks": str(IN_FLIGHT)}
SEED, PATIENCE_S, AFTER_S = 20261128, 30, 3
_GROUP, _SHARE = 0, 2  # key types of FindCoordinator


class Case(NamedTuple):
    """How the leader ends, whether every second record was accepted, and whether it also coordinates the groups."""

    number: signal.Signals
    every_second: bool
    with_state: bool = False

    @property
    def label(self) -> str:
        how = "stopped" if self.number == signal.SIGTERM else "killed"
        accepted = "every second one" if self.every_second else "none"
        return f"leader{' with its state' if self.with_state else ''} {how}, {accepted} accepted"


CASES = [
    Case(number, every_second, with_state)
    for number in (signal.SIGTERM, signal.SIGKILL)
    for every_second, with_state in ((False, False), (True, False), (True, True))
]
ROWS = [
    Row(case.label, figure, f"ms, {what}", aim)
    for case in CASES
    for figure, what, aim in (
        ("first_ms", "first", 1.0),
        ("all_ms", "all", 1.0),
        ("leader_ms", "leader", None),
        ("first_after_ms", "first after leader", None),
        ("pause_ms", "pause", 1.0),
    )
]


class TunedNode(TunedKafka, KRaftNode):
    """A node with the JVM options of Kafka's own start script."""


@contextmanager
def running(name: str) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        directory = Path(text)
        if name == "kafka":
            with KRaftCluster(fetch("kafka"), directory, settings=SETTINGS, node=TunedNode) as kafka:
                yield kafka
        else:
            libs = fetch("kafka39")
            with (
                ZooKeeper(libs, directory / "zookeeper") as zookeeper,
                KBrokerCluster(directory, zookeeper, settings=SETTINGS) as kbroker,
            ):
                yield kbroker


@dataclass(frozen=True)
class Places:
    """The brokers by their roles: the topic's leader, which ends, and those with the groups and their state."""

    leader: int
    groups: int
    states: int
    controller: int


class InCluster(Member):
    """A member that looks for the new leader when its leader is gone."""

    def __init__(self, cluster: Cluster, topic: str, places: Places, group: str) -> None:
        address, coordinator = cluster.address(places.leader), cluster.address(places.groups)
        super().__init__(address, topic, 1, group, coordinator, **GROUP)
        self._cluster, self._topic, self._asks = cluster, topic, places.controller
        self.leader = places.leader
        self.found_s = 0.0
        """The time at which it first learned of another leader."""

    def accept(self, offsets: list[int]) -> None:
        partition = own.AcknowledgePartition(0, [own.AcknowledgementBatch(each, each, [ACCEPT]) for each in offsets])
        topics = [own.AcknowledgeTopic(self.topic_id, [partition])]
        answer = self.client.ask(own.ShareAcknowledgeRequest(self.group, self.name, self.epoch, topics=topics), 2)
        assert not answer.error_code, answer.error_code
        assert not answer.responses[0].partitions[0].error_code, answer
        self.epoch += 1

    def attempt(self, *acks: AcknowledgementBatch, most: int) -> ShareFetchResponse | None:
        """Return a response without errors; after any other, look for the leader once, and return None."""
        with suppress(OSError):
            answer = self.client.ask(self.request(*acks, partition=0, most=most, wait_ms=500), 2)
            if isinstance(answer, ShareFetchResponse) and not answer.error_code:
                self.epoch += 1
                partitions = [each for topic in answer.responses for each in topic.partitions]
                if not any(each.error_code or each.acknowledge_error_code for each in partitions):
                    return answer
        time.sleep(RETRY_S)
        self._look()
        return None

    def _look(self) -> None:
        found = self._cluster.partition(self._topic, 0, of=self._asks)
        if found is not None and found.leader_id > 0:
            if found.leader_id != self.leader:
                self.found_s = self.found_s or time.monotonic()
            with suppress(OSError):
                client = WireClient(self._cluster.address(found.leader_id))
                self.client.close()
                self.client, self.leader, self.epoch = client, found.leader_id, 0


class Steady:
    """A member that acquires and accepts ten records at a time, and records when each acceptance was confirmed."""

    def __init__(self, member: InCluster) -> None:
        self.heard: list[float] = []
        self._member = member
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        acks: list[AcknowledgementBatch] = []
        while not self._ended.wait(STEP_S):
            answer = self._member.attempt(*acks, most=A_STEP)
            if answer is not None and acks:
                self.heard.append(time.monotonic())
            acks = [] if answer is None else accepted(answer)

    def pause(self, since: float) -> float:
        """End the member; return the longest time without an acceptance, from shortly before `since` on."""
        self._ended.set()
        self._thread.join()
        assert A_STEP * len(self.heard) < IN_FLIGHT + MORE - A_STEP, "it ran out of records"
        heard = [*(each for each in self.heard if each > since - 0.5), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(heard))


def create(cluster: Cluster, topic: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, 1, replica_assignment=[replicas], config={"min.insync.replicas": "2"})
    admin.create_topics([new])[topic].result(WAIT_S)
    cluster.wait_for_isr(topic, 0, replicas)


def coordinator(cluster: Cluster, key: str, key_type: int) -> int:
    """Return the broker that coordinates a group, or the share state of one of its partitions."""
    for node_id in cluster.serving:
        with WireClient(cluster.address(node_id)) as client:
            (found,) = client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6).coordinators
        if not found.error_code:
            return int(found.node_id)
    return -1


def group_at(cluster: Cluster, topic: str, places: Places) -> str:
    """Return the name of a new group whose coordinator and share state are on the given brokers."""
    told = cluster.metadata(places.controller, [topic])
    assert told is not None
    topic_id = base64.urlsafe_b64encode(told.topics[0].topic_id).decode().rstrip("=")
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        group = f"bench-{uuid.uuid4().hex[:8]}"
        wanted = {(group, _GROUP): places.groups, (f"{group}:{topic_id}:0", _SHARE): places.states}
        if all(coordinator(cluster, *key) == node_id for key, node_id in wanted.items()):
            return group
    raise AssertionError(f"no group is at {places}")


def settle(cluster: Cluster) -> None:
    """Elect each broker leader of the partitions that prefer it, as after a start."""
    cluster.mend()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.elect_leaders(ElectionType.PREFERRED).result(WAIT_S)

    def led_by_the_first() -> bool:
        answer = cluster.metadata(cluster.node_ids[0], None)
        return answer is not None and all(
            each.leader_id == each.replica_nodes[0] for topic in answer.topics for each in topic.partitions
        )

    cluster.wait_for("all preferred leaders", led_by_the_first)


def acquire(member: InCluster, every_second: bool) -> tuple[dict[int, int], set[int]]:
    """Return the delivery counts of 10,000 records in flight by offset, and the accepted offsets."""
    counts: dict[int, int] = {}
    deadline = time.monotonic() + WAIT_S
    while len(counts) < IN_FLIGHT:
        counts |= counts_of(member.fetch(most=IN_FLIGHT - len(counts)))
        assert time.monotonic() < deadline, f"{len(counts)} in flight"
    done = set(range(0, IN_FLIGHT, 2)) if every_second else set()
    if done:
        member.accept(sorted(done))
    return counts, done


def counts_of(answer: ShareFetchResponse) -> dict[int, int]:
    return {
        offset: run.delivery_count
        for topic in answer.responses
        for partition in topic.partitions
        for run in partition.acquired_records
        for offset in range(run.first_offset, run.last_offset + 1)
    }


def again(
    member: InCluster, places: Places, counts: dict[int, int], done: set[int], until: float
) -> tuple[float, float]:
    """Return when the new leader delivered the first and the last of the records in flight, at most `until`."""
    left, first = counts.keys() - done, 0.0
    while left and time.monotonic() < until:
        answer = member.attempt(most=IN_FLIGHT)
        if answer is None or member.leader == places.leader:
            continue
        got = counts_of(answer)
        first = first or (time.monotonic() if got else 0.0)
        assert not got.keys() & done, "what was accepted came again"
        assert all(got[each] <= counts[each] + 1 for each in got.keys() & left), "a count rose by more than 1"
        left -= got.keys()
    return first or until, until if left else time.monotonic()


def fail_over(cluster: Cluster, places: Places, case: Case, rng: random.Random) -> Figures:
    topic = f"jobs-{CASES.index(case)}"
    create(cluster, topic, [places.leader, *cluster.others(places.leader)])
    fill(cluster.bootstrap, topic, IN_FLIGHT + MORE, 1, A_STEP)
    member, other = (InCluster(cluster, topic, places, group_at(cluster, topic, places)) for _ in range(2))
    counts, done = acquire(member, case.every_second)
    steady = Steady(other)
    began = 0.0
    try:
        time.sleep(2 + rng.uniform(0, 2))  # at any moment between two heartbeats of the broker
        pid = cluster.pid(places.leader)
        assert pid is not None
        began = time.monotonic()
        os.kill(pid, case.number)
        first, last = again(member, places, counts, done, began + PATIENCE_S)
        time.sleep(AFTER_S)
    finally:
        pause = steady.pause(began)
    cluster.wait_for("the end of the leader", lambda: cluster.pid(places.leader) is None)
    found = member.found_s or last
    ends = {"first": first, "all": last, "leader": found}
    figures = {f"{name}_ms": (at - began) * 1e3 for name, at in ends.items()}
    return figures | {"first_after_ms": (first - found) * 1e3, "pause_ms": pause * 1e3}


def measure(name: str, rng: random.Random) -> Work:
    found: Work = {}
    with running(name) as cluster:
        for case in CASES:
            settle(cluster)
            controller = cluster.controller()
            leader, third = cluster.others(controller)
            groups, states = (leader, leader) if case.with_state else (controller, third)
            found[case.label] = fail_over(cluster, Places(leader, groups, states, controller), case, rng)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating; medians are taken")
    parser.add_argument("--only", choices=SUBJECTS, help="measure one, without a table")
    args = parser.parse_args()
    names = (args.only,) if args.only else SUBJECTS
    chances = {name: random.Random(SEED) for name in names}
    rounds = alternate(args.rounds, lambda name: measure(name, chances[name]), names)
    if not args.only:
        save(
            "share-failover", "Fail-over of share groups", f"share_failover --rounds {args.rounds}", table(ROWS, rounds)
        )


if __name__ == "__main__":
    main()

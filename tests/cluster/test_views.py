"""Filtered views in a cluster: every broker knows them, and their partitions follow those of the source."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    ResourceType,
)

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from tests.views.world import records_of

PATIENCE_S = 30.0
FAST = {"replica.fetch.backoff.ms": 100, "replica.lag.time.max.ms": 1500}
VIEW = {"view.filter": "header.region = 'EU'"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=FAST) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def create(cluster: Cluster, source: str, *, partitions: int = 1, replicas: int = 3) -> str:
    """Create a topic and a view of it. librdkafka's AdminClient could wait for a controller that has ended."""
    cluster.topics.create(source, partitions, replication_factor=replicas)
    name = f"view-of-{source}"
    cluster.topics.create(name, partitions, {"view.source": source, **VIEW})
    return name


def put(cluster: Cluster, topic: str, first: int, count: int) -> None:
    """Write records of which one in ten matches, acknowledged by all replicas."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "acks": "all"})
    for number in range(first, first + count):
        producer.produce(topic, str(number), headers={"region": "US" if number % 10 else "EU"}, partition=0)
    assert not producer.flush(PATIENCE_S)


def states(cluster: Cluster, topic: str) -> list[tuple[object, ...]]:
    """Return what each running broker knows of a topic's partitions."""
    running = [each for each in cluster.brokers.values() if each.is_running]
    found = [each.node.member.state.topics.get(topic) for each in running]
    return [
        () if each is None else tuple((p.replicas, p.leader, p.leader_epoch) for p in each.partitions) for each in found
    ]


def leader_of(cluster: Cluster, topic: str) -> int:
    """Return the live leader of partition 0 on which all running brokers agree."""
    leaders: set[int] = set()

    def is_agreed() -> bool:
        leaders.clear()
        leaders.update(each[0][1] if each else -1 for each in states(cluster, topic))  # type: ignore[index]
        return len(leaders) == 1 and any(cluster.brokers[each].is_running for each in leaders if each > 0)

    until(is_agreed)
    return leaders.pop()


def fetch(wire: WireClient, topic: str, offset: int = 0, wait_ms: int = 0) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)
    data: PartitionData = wire.ask(request, 12).responses[0].partitions[0]
    return data


class Reading:
    """A consumer of a view that collects values in the background."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.values: list[int] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and not message.error():
                self.values.append(int(message.value()))

    def end(self) -> list[int]:
        self._stop.set()
        self._thread.join()
        self._consumer.close()
        return self.values


def test_every_broker_knows_a_view(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "known", partitions=3)
    until(lambda: states(cluster, name) == states(cluster, "known") and len(states(cluster, name)[0]) == 3)
    admin.create_partitions([NewPartitions("known", 5)])["known"].result(PATIENCE_S)
    until(lambda: states(cluster, name) == states(cluster, "known") and len(states(cluster, name)[0]) == 5)
    admin.delete_topics(["known"])["known"].result(PATIENCE_S)
    until(lambda: states(cluster, name) == [(), (), ()])
    admin.delete_topics([name])[name].result(PATIENCE_S)
    until(lambda: all(name not in each.node.member.state.topics for each in cluster.brokers.values()))

    def is_created_again() -> bool:
        with contextlib.suppress(ApiError):  # until the brokers have deleted it
            create(cluster, "known")
            return True
        return False

    until(is_created_again)
    until(lambda: states(cluster, name) == states(cluster, "known") != [(), (), ()])


def test_after_a_kill_of_the_leader_nothing_is_missing_or_doubled(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "killed")
    put(cluster, "killed", 0, 200)
    reading = Reading(cluster, name)
    until(lambda: len(reading.values) == 20)
    first = leader_of(cluster, name)
    cluster.brokers[first].kill()
    until(lambda: leader_of(cluster, name) != first)
    put(cluster, "killed", 200, 200)
    until(lambda: len(reading.values) >= 40)
    cluster.brokers[first].start()
    assert reading.end() == list(range(0, 400, 10))
    ends = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()})
    assert next(iter(ends.values())).result(PATIENCE_S).offset == 391
    until(lambda: states(cluster, name) == states(cluster, "killed") and len(states(cluster, name)) == 3)


def test_a_view_follows_a_reassignment_of_its_source(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "moved", replicas=1)
    put(cluster, "moved", 0, 100)
    reading = Reading(cluster, name)
    until(lambda: len(reading.values) == 10)
    old = leader_of(cluster, name)
    new = next(each for each in cluster.brokers if each != old)
    wanted = ReassignableTopic("moved", [ReassignablePartition(0, [new])])
    controller = next(each for each in cluster.brokers.values() if each.node.controller.is_active)
    with WireClient(controller.bootstrap_servers) as wire:
        wire.ask(AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[wanted]), 0)
        of_view = ReassignableTopic(name, [ReassignablePartition(0, [new])])
        answer = wire.ask(AlterPartitionReassignmentsRequest(timeout_ms=30_000, topics=[of_view]), 0)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        elect = ElectLeadersRequest(0, [TopicPartitions(name, [0])], 30_000)
        elected = wire.ask(elect, 2).replica_election_results
        assert elected[0].partition_result[0].error_code == ErrorCode.INVALID_REQUEST
    until(lambda: leader_of(cluster, name) == new)
    put(cluster, "moved", 100, 100)
    until(lambda: len(reading.values) >= 20)
    assert reading.end() == list(range(0, 200, 10))


def test_a_follower_answers_for_a_view(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "near")
    put(cluster, "near", 0, 100)
    leader = leader_of(cluster, name)
    follower = next(each for each in cluster.brokers if each != leader)
    with WireClient(cluster.brokers[follower].bootstrap_servers) as wire:
        until(lambda: len(records_of(bytes(fetch(wire, name).records))) == 10)
        data = fetch(wire, name, 91)
        assert (data.error_code, bytes(data.records), data.high_watermark) == (0, b"", 91)


def test_a_new_controller_and_a_restart_keep_views(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "kept")
    put(cluster, "kept", 0, 20)
    active = next(number for number, each in cluster.brokers.items() if each.node.controller.is_active)
    cluster.brokers[active].stop()
    until(lambda: any(each.node.controller.is_active for each in cluster.brokers.values() if each.is_running))
    other = create(cluster, "after", replicas=2)
    cluster.brokers[active].start()
    until(lambda: len(states(cluster, name)) == 3 and states(cluster, name) == states(cluster, "kept"))
    until(lambda: len(states(cluster, other)) == 3 and states(cluster, other) == states(cluster, "after"))
    assert [each.offset for each in cluster.topics[name].records()] == [0, 10]
    with contextlib.suppress(KafkaException):
        admin.delete_topics([name, other])[name].result(PATIENCE_S)


def test_a_share_group_on_a_view(cluster: Cluster, admin: AdminClient) -> None:
    name = create(cluster, "jobs", partitions=3)
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[entry])
    admin.incremental_alter_configs([group])[group].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(300):
        producer.produce("jobs", str(number), headers={"region": "US" if number % 10 else "EU"}, partition=number % 3)
    assert not producer.flush(PATIENCE_S)
    consumer = ShareConsumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "workers"})
    consumer.subscribe([name])
    found: set[int] = set()

    def has_all() -> bool:
        found.update(int(each.value()) for each in consumer.poll(0.2))
        return found == set(range(0, 300, 10))

    try:
        until(has_all)
        consumer.poll(0.2)  # acknowledges
        until(lambda: cluster.groups["workers"].lag() == 0)
    finally:
        consumer.close()

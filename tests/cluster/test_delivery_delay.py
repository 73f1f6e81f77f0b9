"""A topic with `delivery.delay.ms` in a cluster: the replicas agree, and no fail-over delivers a record early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.records import iter_batches

DELAY_MS = 2500
DELAYED = {"delivery.delay.ms": str(DELAY_MS), "message.timestamp.type": "LogAppendTime"}
PATIENCE_S = 30.0
FAST = {"replica.fetch.backoff.ms": 100, "replica.lag.time.max.ms": 1500}
COUNT = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=FAST) as running:
        yield running


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def leader_of(cluster: Cluster, topic: str) -> int:
    """Return the leader of partition 0 on which all running brokers agree."""
    leaders: set[int] = set()

    def is_agreed() -> bool:
        running = [each for each in cluster.brokers.values() if each.is_running]
        known = [each.node.member.state.partition(topic, 0) for each in running]
        leaders.clear()
        leaders.update(-1 if each is None else each.leader for each in known)
        return len(leaders) == 1 and any(cluster.brokers[each].is_running for each in leaders if each > 0)

    until(is_agreed)
    return leaders.pop()


def produce(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "acks": "all"})
    for number in range(COUNT):
        producer.produce(topic, str(number))
        producer.flush(PATIENCE_S)


def read_all(consumer: Consumer, topic: str) -> list[tuple[str, int]]:
    """Read the topic; return each value with the ms between its append and its arrival."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, int]] = []
    end = time.monotonic() + PATIENCE_S
    while len(found) < COUNT and time.monotonic() < end:
        message: Message | None = consumer.poll(0.2)
        if message is not None and not message.error():
            found.append((message.value().decode(), time.time_ns() // 1_000_000 - message.timestamp()[1]))
    consumer.close()
    return found


def test_after_a_failover_no_record_comes_early(cluster: Cluster) -> None:
    cluster.topics.create("failed-over", partitions=1, replication_factor=3, config=DELAYED)
    produce(cluster, "failed-over")
    first = leader_of(cluster, "failed-over")
    cluster.brokers[first].kill()
    until(lambda: leader_of(cluster, "failed-over") != first)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"})
    found = read_all(consumer, "failed-over")
    assert [value for value, _ in found] == [str(each) for each in range(COUNT)]
    assert min(after_ms for _, after_ms in found) >= DELAY_MS
    cluster.brokers[first].start()


def test_a_consumer_of_a_follower_waits_as_long(cluster: Cluster) -> None:
    cluster.topics.create("near", partitions=1, replication_factor=3, config=DELAYED)
    produce(cluster, "near")
    began = time.monotonic()
    follower = next(each for each in (1, 2, 3) if each != leader_of(cluster, "near"))
    with WireClient(cluster.brokers[follower].bootstrap_servers) as wire:

        def fetch(offset: int, wait_ms: int) -> PartitionData:
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic="near", partitions=[wanted])]
            request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics)
            data: PartitionData = wire.ask(request, 12).responses[0].partitions[0]
            assert data.error_code == 0
            return data

        assert (fetch(0, 0).high_watermark, bool(fetch(0, 0).records)) == (0, False)
        first = fetch(0, int(PATIENCE_S * 1000))
        assert bool(first.records)
        assert time.monotonic() - began < PATIENCE_S / 2
        until(lambda: fetch(0, 0).high_watermark == COUNT)
    (batch, *_) = [header for _, header in iter_batches(memoryview(first.records))]
    assert batch.max_timestamp + DELAY_MS <= time.time_ns() // 1_000_000


def test_followers_do_not_wait(cluster: Cluster) -> None:
    config = {**DELAYED, "delivery.delay.ms": "600000", "min.insync.replicas": "3"}
    cluster.topics.create("copied", partitions=1, replication_factor=3, config=config)
    produce(cluster, "copied")  # acks=all: each follower has the records
    leader = leader_of(cluster, "copied")
    with WireClient(cluster.brokers[leader].bootstrap_servers) as wire:
        wanted = [ListOffsetsTopic("copied", [ListOffsetsPartition(0, -1, -1)])]
        (answer,) = wire.ask(ListOffsetsRequest(-1, 0, wanted), 7).topics[0].partitions
    assert (answer.error_code, answer.offset) == (0, 0)

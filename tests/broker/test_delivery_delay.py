"""Topics with `delivery.delay.ms` on a running broker: every way to read or to count agrees on what is old enough."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

DELAY_S = 600
DELAYED = {"delivery.delay.ms": str(DELAY_S * 1000), "message.timestamp.type": "LogAppendTime"}
PATIENCE_S = 20.0
LATEST, MAX_TIMESTAMP = -1, -3
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"delayed{next(_numbers)}"
    broker.topics.create(name, config=DELAYED)
    return name


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as client:
        yield client


def put(broker: Broker, topic: str, *values: str) -> None:
    for value in values:
        broker.topics[topic].produce(value)


def fetch(topic: str, offset: int = 0, partitions: int = 1, wait_ms: int = 0, committed: bool = False) -> FetchRequest:
    wanted = [FetchPartition(each, fetch_offset=offset, partition_max_bytes=1 << 20) for each in range(partitions)]
    return FetchRequest(
        replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, isolation_level=int(committed),
        session_epoch=-1, topics=[FetchTopic(topic=topic, partitions=wanted)],
    )  # fmt: skip


def seen(answer: FetchResponse) -> list[tuple[int, int, bool]]:
    """Return (high watermark, last stable offset, whether there are records) of each partition."""
    data = [each for topic in answer.responses for each in topic.partitions]
    assert not any(each.error_code for each in data)
    return [(each.high_watermark, each.last_stable_offset, bool(each.records)) for each in data]


def offset_at(wire: WireClient, topic: str, timestamp: int, *, committed: bool = False, replica: int = -1) -> int:
    wanted = [ListOffsetsPartition(0, -1, timestamp)]
    request = ListOffsetsRequest(replica, int(committed), [ListOffsetsTopic(topic, wanted)])
    (answer,) = wire.ask(request, 7).topics[0].partitions
    assert not answer.error_code
    return int(answer.offset)


def in_thread(wire: WireClient, request: FetchRequest) -> Callable[[], FetchResponse]:
    """Send a fetch that waits; return a function that waits for the answer."""
    answers: list[FetchResponse] = []
    thread = threading.Thread(target=lambda: answers.append(wire.ask(request, 12)))
    thread.start()

    def finish() -> FetchResponse:
        thread.join(PATIENCE_S)
        return answers[0]

    return finish


def waiting(broker: Broker, topic: str) -> None:
    """Return when a fetch waits on a topic."""
    partition = broker.node.replicas.get((topic, 0))
    deadline = time.monotonic() + PATIENCE_S
    while partition is None or not partition.waiters:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_consumers_see_a_record_after_the_delay_and_not_before(broker: Broker, topic: str, wire: WireClient) -> None:
    put(broker, topic, "one")
    broker.clock.advance(seconds=DELAY_S - 60)
    put(broker, topic, "two")
    assert seen(wire.ask(fetch(topic), 12)) == [(0, 0, False)]
    assert broker.topics[topic].values() == []
    broker.clock.advance(seconds=61)
    assert seen(wire.ask(fetch(topic), 12)) == [(1, 1, True)]
    assert seen(wire.ask(fetch(topic, offset=1), 12)) == [(1, 1, False)]
    assert seen(wire.ask(fetch(topic, offset=2), 12)) == [(1, 1, False)], "as between high watermark and log end"
    broker.clock.advance(seconds=DELAY_S)
    assert broker.topics[topic].values() == [b"one", b"two"]


@pytest.mark.parametrize("partitions", [1, 100], ids=["short", "long"])
def test_a_waiting_fetch_returns_when_the_record_is_old_enough(
    broker: Broker, wire: WireClient, partitions: int
) -> None:
    topic = f"delayed{next(_numbers)}"
    broker.topics.create(topic, partitions, config=DELAYED)
    put(broker, topic, "before the fetch")
    finish = in_thread(wire, fetch(topic, partitions=partitions, wait_ms=int(PATIENCE_S * 1000) + DELAY_S * 1000))
    waiting(broker, topic)
    broker.clock.advance(seconds=DELAY_S - 60)
    put(broker, topic, "after the fetch")
    waiting(broker, topic)
    broker.clock.advance(seconds=70)
    assert seen(finish())[0] == (1, 1, True)
    broker.clock.advance(seconds=DELAY_S)
    assert seen(wire.ask(fetch(topic, partitions=partitions), 12))[0] == (2, 2, True)


def test_a_fetch_waits_for_the_record_and_not_longer(broker: Broker, wire: WireClient) -> None:
    topic = f"delayed{next(_numbers)}"
    broker.topics.create(topic, config={**DELAYED, "delivery.delay.ms": "300"})
    put(broker, topic, "x")
    began = time.monotonic()
    answer = wire.ask(fetch(topic, wait_ms=int(PATIENCE_S * 1000)), 12)
    assert seen(answer) == [(1, 1, True)]
    assert time.monotonic() - began < PATIENCE_S / 2, "the fetch must not wait until max_wait_ms"


def test_offsets_agree_with_what_can_be_read(broker: Broker, topic: str, wire: WireClient) -> None:
    put(broker, topic, "one")
    first_ms = broker.clock.now_ms()
    broker.clock.advance(seconds=100)
    put(broker, topic, "two")
    assert [offset_at(wire, topic, each) for each in (LATEST, MAX_TIMESTAMP, 0)] == [0, -1, -1]
    assert offset_at(wire, topic, LATEST, replica=-2) == 2, "a tool that compares replicas sees all"
    broker.clock.advance(seconds=DELAY_S - 50)
    assert [offset_at(wire, topic, each) for each in (LATEST, MAX_TIMESTAMP, 0)] == [1, 0, 0]
    assert offset_at(wire, topic, first_ms + 50_000) == -1, "the record of this time is not old enough"
    assert offset_at(wire, topic, LATEST, committed=True) == 1
    broker.clock.advance(seconds=100)
    assert [offset_at(wire, topic, each) for each in (LATEST, MAX_TIMESTAMP, 0)] == [2, 1, 0]
    assert offset_at(wire, topic, first_ms + 50_000) == 1


def test_a_transaction_is_read_if_it_is_committed_and_old_enough(broker: Broker, topic: str, wire: WireClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for value, ends in (("kept", producer.commit_transaction), ("dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)
        ends(PATIENCE_S)
    assert seen(wire.ask(fetch(topic, committed=True), 12)) == [(0, 0, False)]
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(PATIENCE_S)
    broker.clock.advance(seconds=30)  # less than the transaction's timeout
    partition = broker.node.replicas.get((topic, 0))
    assert partition is not None
    set_delay(broker, topic, 1000)
    assert seen(wire.ask(fetch(topic, committed=True), 12)) == [(5, 4, True)]
    assert broker.topics[topic].values() == [b"kept"]
    producer.commit_transaction(PATIENCE_S)
    assert broker.topics[topic].values() == [b"kept", b"open"]


def set_delay(broker: Broker, topic: str, delay_ms: int) -> None:
    set_config(broker, ResourceType.TOPIC, topic, "delivery.delay.ms", str(delay_ms))


def set_config(broker: Broker, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    changed = admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])])
    next(iter(changed.values())).result(PATIENCE_S)


def test_a_shorter_delay_answers_a_fetch_that_waits(broker: Broker, topic: str, wire: WireClient) -> None:
    put(broker, topic, "x")
    finish = in_thread(wire, fetch(topic, wait_ms=int(PATIENCE_S * 1000)))
    waiting(broker, topic)
    began = time.monotonic()
    set_delay(broker, topic, 1)
    assert seen(finish()) == [(1, 1, True)]
    assert time.monotonic() - began < PATIENCE_S / 2
    put(broker, topic, "y")
    finish = in_thread(wire, fetch(topic, offset=1, wait_ms=int(PATIENCE_S * 1000)))
    assert seen(finish()) == [(2, 2, True)]
    set_delay(broker, topic, 0)
    put(broker, topic, "z")
    assert seen(wire.ask(fetch(topic, offset=2), 12)) == [(3, 3, True)]


def test_a_share_group_gets_a_record_when_it_is_old_enough(broker: Broker, topic: str) -> None:
    group = f"share-{topic}"
    set_config(broker, ResourceType.GROUP, group, "share.auto.offset.reset", "earliest")
    put(broker, topic, "job")
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    try:
        deadline, found = time.monotonic() + PATIENCE_S, []
        while not broker.node.services.share.of_group(group):
            found += consumer.poll(0.1)
            assert time.monotonic() < deadline
        assert found == []
        assert broker.groups[group].lag() == 0
        broker.clock.advance(seconds=DELAY_S)
        while not found and time.monotonic() < deadline:
            found += consumer.poll(0.1)
        assert [each.value() for each in found] == [b"job"]
    finally:
        consumer.close()


def test_a_group_has_no_lag_while_nothing_can_be_read(broker: Broker, topic: str) -> None:
    put(broker, topic, "one")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "latest"}
    client = Consumer(settings)
    client.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    assert client.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 0)
    assert broker.groups[topic].lag() == 0
    broker.clock.advance(seconds=DELAY_S)
    assert client.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_S) == (0, 1)
    assert broker.groups[topic].lag() == 1
    client.close()


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"delivery.delay.ms": "1000"}, "needs message.timestamp.type=LogAppendTime"),
        ({**DELAYED, "retention.ms": "600000"}, "must be less than retention.ms"),
        ({**DELAYED, "delivery.delay.ms": "-1"}, "delivery.delay.ms"),
        ({**DELAYED, "delivery.delay.ms": "soon"}, "delivery.delay.ms"),
        ({**DELAYED, "delivery.delay.ms": str(2**63)}, "delivery.delay.ms"),
    ],
)
def test_a_delay_that_cannot_be_kept_is_refused(broker: Broker, configs: dict[str, str], why: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("refused", 1, 1, config=configs)])["refused"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert why in refused.value.args[0].str()


def test_the_longest_delay_and_unlimited_retention_are_possible(broker: Broker, wire: WireClient) -> None:
    topic = f"delayed{next(_numbers)}"
    broker.topics.create(topic, config={**DELAYED, "delivery.delay.ms": str(2**63 - 1), "retention.ms": "-1"})
    put(broker, topic, "x")
    assert seen(wire.ask(fetch(topic, wait_ms=50), 12)) == [(0, 0, False)]


def test_records_that_wait_can_be_deleted(broker: Broker, topic: str, wire: WireClient) -> None:
    put(broker, topic, "one", "two")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_records([TopicPartition(topic, 0, -1)])[TopicPartition(topic, 0)].result(PATIENCE_S)
    assert seen(wire.ask(fetch(topic, offset=2), 12)) == [(2, 2, False)]
    found = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})[TopicPartition(topic, 0)].result()
    assert found.offset == 2

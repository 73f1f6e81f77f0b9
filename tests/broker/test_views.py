"""Filtered views on a running broker: what they show, what they refuse, and what happens to their sources."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.views.world import records_of

PATIENCE_S = 20.0
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EU = "header.region = 'EU'"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture
def source(broker: Broker) -> str:
    name = f"source{next(_numbers)}"
    broker.topics.create(name)
    return name


def view(broker: Broker, source: str, wanted: str = EU, partitions: int = 1) -> str:
    name = f"view{next(_numbers)}"
    broker.topics.create(name, partitions, config={"view.source": source, "view.filter": wanted})
    return name


def put(broker: Broker, topic: str, *regions: str, value: str = "x") -> None:
    for region in regions:
        broker.topics[topic].produce(value, headers=[("region", region)])


def fetch(
    *topics: str, offset: int = 0, wait_ms: int = 0, committed: bool = False, most: int = 1 << 20, session: int = -1
) -> FetchRequest:
    wanted = [
        FetchTopic(topic=each, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=most)])
        for each in topics
    ]
    return FetchRequest(
        replica_id=-1, max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 24, isolation_level=int(committed),
        session_epoch=session, topics=wanted,
    )  # fmt: skip


def data_of(answer: FetchResponse) -> list[PartitionData]:
    return [each for topic in answer.responses for each in topic.partitions]


def offsets_in(data: PartitionData) -> list[int]:
    return [each.offset for each in records_of(bytes(data.records or b""))]


def offset_at(wire: WireClient, topic: str, timestamp: int, *, committed: bool = False) -> int:
    wanted = [ListOffsetsPartition(0, -1, timestamp)]
    (answer,) = (
        wire.ask(ListOffsetsRequest(-1, int(committed), [ListOffsetsTopic(topic, wanted)]), 7).topics[0].partitions
    )
    assert not answer.error_code, answer
    return int(answer.offset)


def until_waiting(broker: Broker, topic: str) -> None:
    """Return when a fetch waits on a source."""
    partition = broker.node.replicas.get((topic, 0))
    deadline = time.monotonic() + PATIENCE_S
    while partition is None or not partition.waiters:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def in_thread(wire: WireClient, request: FetchRequest) -> Callable[[], FetchResponse]:
    """Send a fetch that waits; return a function that waits for the answer."""
    answers: list[FetchResponse] = []
    thread = threading.Thread(target=lambda: answers.append(wire.ask(request, 12)))
    thread.start()

    def finish() -> FetchResponse:
        thread.join(PATIENCE_S)
        return answers[0]

    return finish


@functools.cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def admin(broker: Broker) -> AdminClient:
    return _admin(broker.bootstrap_servers)  # kept: a client without a reference gives up its requests


def set_config(broker: Broker, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    changed = admin(broker).incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    )
    next(iter(changed.values())).result(PATIENCE_S)


def refused(change: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(KafkaException) as error:
        change()
    return error.value.args[0].code(), error.value.args[0].str()


# -- what a view shows


def test_offsets_are_those_of_the_source(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US", "EU", "US", "US")
    name = view(broker, source)
    (data,) = data_of(wire.ask(fetch(name), 12))
    assert (offsets_in(data), data.high_watermark, data.last_stable_offset) == ([0, 2], 3, 3)
    assert [offset_at(wire, name, each) for each in (LATEST, EARLIEST)] == [3, 0]
    assert [each.offset for each in broker.topics[name].records()] == [0, 2]


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_offsets_behind_the_last_match_are_legal_up_to_the_end_of_the_source(
    broker: Broker, source: str, wire: WireClient, offset: int
) -> None:
    put(broker, source, "EU", "US", "EU", "US", "US")
    name = view(broker, source)
    (data,) = data_of(wire.ask(fetch(name, offset=offset), 12))
    assert (data.error_code, bytes(data.records), data.high_watermark) == (0, b"", offset)
    (data,) = data_of(wire.ask(fetch(name, offset=6), 12))
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_librdkafka_finds_the_end_of_a_view_within_a_batch(broker: Broker, source: str) -> None:
    """After a batch whose last records do not match, a client's position is beyond the last match."""
    name = view(broker, source)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 100})
    for region in (b"EU", b"US", b"US"):
        producer.produce(source, b"x", headers=[("region", region)])
    assert producer.flush(PATIENCE_S) == 0
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "ends",
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(name, 0, 0)])
        first, end = consumer.poll(PATIENCE_S), consumer.poll(PATIENCE_S)
        assert first is not None
        assert (first.error(), first.offset()) == (None, 0)
        assert end is not None
        assert end.error() is not None
        assert end.error().code() == KafkaError._PARTITION_EOF
        consumer.close()


def test_a_fetch_is_held_while_nothing_matches(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US")
    name = view(broker, source)
    finish = in_thread(wire, fetch(name, offset=1, wait_ms=int(PATIENCE_S * 1000)))
    until_waiting(broker, source)
    put(broker, source, "US", "US", "US")
    until_waiting(broker, source)
    began = time.monotonic()
    put(broker, source, "EU")
    (data,) = data_of(finish())
    assert offsets_in(data) == [5]
    assert time.monotonic() - began < PATIENCE_S / 2


def test_an_empty_answer_comes_after_max_wait(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "US")
    name = view(broker, source)
    began = time.monotonic()
    (data,) = data_of(wire.ask(fetch(name, wait_ms=400), 12))
    assert not data.records
    assert time.monotonic() - began > 0.35


def test_what_was_scanned_is_not_scanned_again(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", *["US"] * 50)
    name = view(broker, source)
    assert offset_at(wire, name, LATEST) == 1
    before = broker.node.views.shared.scanned
    for _ in range(20):
        assert not data_of(wire.ask(fetch(name, offset=1), 12))[0].records
    assert broker.node.views.shared.scanned == before
    put(broker, source, "US", "US")
    for _ in range(20):
        assert not data_of(wire.ask(fetch(name, offset=1), 12))[0].records
    assert broker.node.views.shared.scanned == before + 2


def test_a_view_and_plain_topics_in_one_fetch(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US", "EU")
    name, other = view(broker, source), view(broker, source, "header.region = 'US'")
    found = wire.ask(fetch(name, source, other, "missing"), 12)
    data = {topic.topic: topic.partitions[0] for topic in found.responses}
    assert offsets_in(data[name]) == [0, 2]
    assert offsets_in(data[source]) == [0, 1, 2]
    assert offsets_in(data[other]) == [1]
    assert data["missing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_of_many_partitions(broker: Broker, wire: WireClient) -> None:
    source = f"source{next(_numbers)}"
    broker.topics.create(source, 100)
    name = view(broker, source, partitions=100)
    broker.topics[source].produce("x", partition=70, headers=[("region", "EU")])
    wanted = [FetchPartition(index, fetch_offset=0, partition_max_bytes=1000) for index in range(100)]
    request = fetch(name, wait_ms=int(PATIENCE_S * 1000))
    request.topics = [FetchTopic(topic=name, partitions=wanted)]
    found = {each.partition_index: offsets_in(each) for each in data_of(wire.ask(request, 12))}
    assert [index for index, offsets in found.items() if offsets] == [70]


def test_sessions(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US")
    name = view(broker, source)
    first = wire.ask(fetch(name, session=0), 12)
    assert first.session_id
    assert offsets_in(data_of(first)[0]) == [0]
    again = fetch(name, offset=1, session=1)
    again.session_id = first.session_id
    second = wire.ask(again, 12)
    assert not any(each.records for each in data_of(second))
    put(broker, source, "EU")
    third = fetch(wait_ms=100, session=2)
    third.session_id = first.session_id
    assert offsets_in(data_of(wire.ask(third, 12))[0]) == [2]


def test_max_bytes_counts_what_matches(broker: Broker, source: str, wire: WireClient) -> None:
    for number in range(40):
        put(broker, source, "US" if number % 10 else "EU", value="v" * 1000)
    name = view(broker, source)
    (data,) = data_of(wire.ask(fetch(name, most=2500), 12))
    assert offsets_in(data) == [0, 10]
    (data,) = data_of(wire.ask(fetch(name, offset=11, most=1), 12))
    assert offsets_in(data) == [20], "one batch is always returned"


def test_times_find_matches_only(broker: Broker, source: str, wire: WireClient) -> None:
    for number, region in enumerate(["US", "EU", "US", "EU", "US"]):
        broker.topics[source].produce("x", headers=[("region", region)], timestamp=1000 + number)
    name = view(broker, source)
    assert [offset_at(wire, name, each) for each in (1000, 1001, 1002, 1003, 1004)] == [1, 1, 3, 3, -1]
    assert offset_at(wire, name, MAX_TIMESTAMP) == 3


def test_committed_records_only(broker: Broker, source: str, wire: WireClient) -> None:
    name = view(broker, source, "A || B")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": source})
    producer.init_transactions(PATIENCE_S)
    for tag, ends in (("A", producer.commit_transaction), ("B", producer.abort_transaction), ("A", None)):
        producer.begin_transaction()
        producer.produce(source, "x", headers={"tag": "C"})
        producer.produce(source, "y", headers={"tag": tag})
        producer.flush(PATIENCE_S)
        if ends is not None:
            ends(PATIENCE_S)
    (data,) = data_of(wire.ask(fetch(name, committed=True), 12))
    assert (data.high_watermark, data.last_stable_offset) == (8, 5)
    assert [each.value for each in broker.topics[name].records(isolation="read_committed")] == [b"y"]
    assert [offset_at(wire, name, LATEST, committed=each) for each in (False, True)] == [8, 5]
    producer.commit_transaction(PATIENCE_S)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    found = [message.offset() for _ in range(2) if (message := consumer.poll(PATIENCE_S)) is not None]
    consumer.close()
    assert found == [1, 7]


def test_a_delayed_source_delays_its_views(broker: Broker, wire: WireClient) -> None:
    source = f"source{next(_numbers)}"
    broker.topics.create(source, config={"delivery.delay.ms": "600000", "message.timestamp.type": "LogAppendTime"})
    name = view(broker, source)
    put(broker, source, "EU")
    assert not data_of(wire.ask(fetch(name), 12))[0].records
    assert offset_at(wire, name, LATEST) == 0
    finish = in_thread(wire, fetch(name, wait_ms=int(PATIENCE_S * 1000)))
    until_waiting(broker, source)
    broker.clock.advance(minutes=11)
    assert offsets_in(data_of(finish())[0]) == [0]


def test_another_filter_counts_at_once(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US")
    name = view(broker, source)
    finish = in_thread(wire, fetch(name, offset=1, wait_ms=int(PATIENCE_S * 1000)))
    until_waiting(broker, source)
    set_config(broker, name, "view.filter", "header.region = 'US'")
    assert offsets_in(data_of(finish())[0]) == [1]
    assert offset_at(wire, name, LATEST) == 2


def test_a_large_compressed_batch(broker: Broker, source: str, wire: WireClient) -> None:
    set_config(broker, source, "max.message.bytes", str(32 << 20))
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "compression.type": "lz4",
            "message.max.bytes": 30 << 20,
            "batch.size": 20 << 20,
            "batch.num.messages": 50_000,
            "linger.ms": 500,
        }
    )
    for number in range(20_000):
        producer.produce(source, b"%d" % number * 100, headers={"region": "EU" if number % 4000 == 7 else "US"})
    producer.flush(PATIENCE_S)
    name = view(broker, source)
    (data,) = data_of(wire.ask(fetch(name, wait_ms=int(PATIENCE_S * 1000), most=1 << 26), 12))
    assert offsets_in(data) == [7, 4007, 8007, 12007, 16007]


def test_a_damaged_batch_stops_a_view_as_it_stops_a_consumer(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "EU", "EU")
    partition = broker.node.replicas.get((source, 0))
    assert partition is not None
    path = Path(partition.log.segments.active.path())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    name = view(broker, source)
    (data,) = data_of(wire.ask(fetch(name), 12))
    assert data.error_code == ErrorCode.CORRUPT_MESSAGE
    assert partition.log.damaged_at == 0


def test_the_partitions_grow_with_the_source(broker: Broker, source: str) -> None:
    name = view(broker, source)
    admin(broker).create_partitions([NewPartitions(source, 3)])[source].result(PATIENCE_S)
    assert broker.topics[name].partitions == 3
    broker.topics[source].produce("x", partition=2, headers=[("region", "EU")])
    assert [(each.partition, each.offset) for each in broker.topics[name].records()] == [(2, 0)]


# -- what a view refuses


def test_a_view_can_only_be_read(broker: Broker, source: str) -> None:
    name = view(broker, source)
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(name, "x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    assert [each.code() for each in errors] == [KafkaError.INVALID_REQUEST]
    transactional = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    transactional.init_transactions(PATIENCE_S)
    transactional.begin_transaction()
    transactional.produce(name, "x")
    with pytest.raises(KafkaException):
        transactional.commit_transaction(PATIENCE_S)
    assert (
        "view" in refused(lambda: admin(broker).create_partitions([NewPartitions(name, 3)])[name].result(PATIENCE_S))[1]
    )
    deleted = admin(broker).delete_records([TopicPartition(name, 0, 1)])
    assert refused(lambda: next(iter(deleted.values())).result(PATIENCE_S))[0] == KafkaError.POLICY_VIOLATION
    for key, value in (("cleanup.policy", "compact"), ("retention.ms", "1000"), ("delivery.delay.ms", "5")):
        code, text = refused(functools.partial(set_config, broker, name, key, value))
        assert code in (KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION), text
    assert "create another topic" in refused(lambda: set_config(broker, name, "view.source", "elsewhere"))[1]
    assert "no view" in refused(lambda: set_config(broker, source, "view.filter", "*"))[1]
    assert "cannot become" in refused(lambda: set_config(broker, source, "view.source", name))[1]


@pytest.mark.parametrize(
    ("configs", "partitions", "text"),
    [
        ({"view.filter": "((" + " " * 9}, -1, "at character"),
        ({"view.filter": "x" * 100_000}, -1, "view.filter"),
        ({"view.filter": ""}, -1, "a view needs view.filter"),
        ({}, -1, "a view needs view.filter"),
        ({"view.filter": EU, "retention.ms": "5"}, -1, "retention.ms"),
        ({"view.filter": EU, "view.source": "nothing"}, -1, "does not exist"),
        ({"view.filter": EU, "view.source": ""}, -1, "needs view.source"),
        ({"view.filter": EU}, 7, "partition(s) of its source"),
    ],
)
def test_a_wrong_view_is_refused(
    broker: Broker, source: str, configs: dict[str, str], partitions: int, text: str
) -> None:
    wanted = NewTopic(f"wrong{next(_numbers)}", partitions, config={"view.source": source, **configs})
    assert text in refused(lambda: admin(broker).create_topics([wanted])[wanted.topic].result(PATIENCE_S))[1]


def test_views_of_views_are_refused(broker: Broker, source: str) -> None:
    name = view(broker, source)
    wanted = NewTopic("viewed-twice", config={"view.source": name, "view.filter": "*"})
    assert (
        "views of views" in refused(lambda: admin(broker).create_topics([wanted])[wanted.topic].result(PATIENCE_S))[1]
    )


def test_a_deleted_source_does_not_come_back_as_a_view(broker: Broker, source: str) -> None:
    name = f"source{next(_numbers)}"
    broker.topics.create(name)
    view(broker, name)
    client = admin(broker)
    client.delete_topics([name])[name].result(PATIENCE_S)
    wanted = NewTopic(name, config={"view.source": source, "view.filter": "*"})
    assert "has views itself" in refused(lambda: client.create_topics([wanted])[name].result(PATIENCE_S))[1]


def test_a_division_by_zero_matches_nothing(broker: Broker, source: str, wire: WireClient) -> None:
    broker.topics[source].produce('{"n": 0}')
    name = view(broker, source, "1 / value.n > 0")
    assert not data_of(wire.ask(fetch(name), 12))[0].records
    assert offset_at(wire, name, LATEST) == 0


# -- sources that go, and restarts


def test_of_a_deleted_source_nothing_is_left(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU", "US")
    name = view(broker, source)
    client = admin(broker)
    (known,) = wire.ask(MetadataRequest([MetadataRequestTopic(name=name)]), 12).topics
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": name})
    consumer.commit(offsets=[TopicPartition(name, 0, 2)], asynchronous=False)
    client.delete_topics([source])[source].result(PATIENCE_S)
    (topic,) = wire.ask(MetadataRequest([MetadataRequestTopic(name=name)]), 12).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (data,) = data_of(wire.ask(fetch(name), 12))
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.topics.create(source)
    put(broker, source, "US", "EU")
    (topic,) = wire.ask(MetadataRequest([MetadataRequestTopic(name=name)]), 12).topics
    assert not topic.error_code
    assert topic.topic_id != known.topic_id, "for clients it is a new topic"
    assert offsets_in(data_of(wire.ask(fetch(name), 12))[0]) == [1]
    (committed,) = consumer.committed([TopicPartition(name, 0)])
    consumer.close()
    assert committed.offset < 0, "offsets start anew"
    client.delete_topics([source])[source].result(PATIENCE_S)
    client.delete_topics([name])[name].result(PATIENCE_S)
    assert name not in client.list_topics(timeout=PATIENCE_S).topics


def test_a_waiting_fetch_ends_with_the_view(broker: Broker, source: str, wire: WireClient) -> None:
    name = view(broker, source)
    finish = in_thread(wire, fetch(name, wait_ms=int(PATIENCE_S * 1000)))
    until_waiting(broker, source)
    admin(broker).delete_topics([name])[name].result(PATIENCE_S)
    (data,) = data_of(finish())
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [each.offset for each in broker.topics[source].records()] == []


def test_views_hold_after_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=str(tmp_path)) as broker:
        broker.topics.create("orders", 2)
        for region in ("EU", "US", "EU", "US"):
            put(broker, "orders", region)
        broker.topics.create("eu", 2, config={"view.source": "orders", "view.filter": EU})
    with Broker(data_dir=str(tmp_path)) as broker, WireClient(broker.bootstrap_servers) as wire:
        assert [each.offset for each in broker.topics["eu"].records()] == [0, 2]
        (data,) = data_of(wire.ask(fetch("eu", offset=3), 12))
        assert not data.records
        assert offset_at(wire, "eu", LATEST) == 3
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("eu-")], "nothing is stored"
        ends = admin(broker).list_offsets({TopicPartition("eu", 0): OffsetSpec.latest()})
        assert next(iter(ends.values())).result(PATIENCE_S).offset == 3


def test_a_stored_filter_that_cannot_be_read_shows_nothing(broker: Broker, source: str, wire: WireClient) -> None:
    put(broker, source, "EU")
    name = view(broker, source)
    done = threading.Event()

    def store() -> None:
        broker.node.controller.set_configs("topics", name, {"view.source": source, "view.filter": "(("})
        done.set()

    loop = broker._loop
    assert loop is not None
    loop.call_soon_threadsafe(store)
    assert done.wait(PATIENCE_S)
    set_config(broker, source, "retention.ms", "-1")  # published after the other
    (data,) = data_of(wire.ask(fetch(name), 12))
    assert (data.error_code, bytes(data.records)) == (ErrorCode.INVALID_CONFIG, b"")


# -- many views, and far ends


def test_a_partition_that_is_far_behind_does_not_hold_up_others(broker: Broker, source: str, wire: WireClient) -> None:
    for _ in range(300):
        put(broker, source, "US", value="v" * 2000)
    put(broker, source, "EU")
    nothing, name = view(broker, source, "value.n = 1"), view(broker, source)
    answer = wire.ask(fetch(nothing, name, wait_ms=int(PATIENCE_S * 1000)), 12)
    found = {topic.topic: offsets_in(topic.partitions[0]) for topic in answer.responses}
    assert found == {nothing: [], name: [300]}


def test_a_filter_that_matches_nothing_is_scanned_once(broker: Broker, source: str, wire: WireClient) -> None:
    for _ in range(200):
        put(broker, source, "US", value="v" * 1000)
    name = view(broker, source, "value.n = 1")
    assert offset_at(wire, name, LATEST) == 0
    before = broker.node.views.shared.scanned
    for _ in range(5):
        (data,) = data_of(wire.ask(fetch(name, wait_ms=50), 12))
        assert (bytes(data.records), data.high_watermark) == (b"", 0)
    assert broker.node.views.shared.scanned == before


def test_each_new_batch_is_opened_once_for_all_views(broker: Broker, source: str) -> None:
    names = [view(broker, source, f"header.region = 'C{number}'") for number in range(60)]
    finishes = []
    clients = [WireClient(broker.bootstrap_servers) for _ in names]
    for client, name in zip(clients, names, strict=True):
        finishes.append(in_thread(client, fetch(name, wait_ms=int(PATIENCE_S * 1000))))
    partition = broker.node.replicas.get((source, 0))
    assert partition is not None
    scan = broker.node.views.scan_of(partition)
    deadline = time.monotonic() + PATIENCE_S
    while sum(bool(each.waiters) for each in list(scan.selections.values())) < len(names):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = broker.node.views.shared.scanned
    put(broker, source, "other", *(f"C{number}" for number in range(60)))
    found = [offsets_in(data_of(finish())[0]) for finish in finishes]
    assert found == [[1 + number] for number in range(60)]
    assert broker.node.views.shared.scanned - before <= 4 * 61, (
        "a fetch opens a batch itself if it is quicker than the scan"
    )
    for client in clients:
        client.close()


def test_the_test_kits_snapshots_contain_views() -> None:
    with Broker() as broker:
        broker.topics.create("orders", 2)
        broker.topics.create("eu", 2, config={"view.source": "orders", "view.filter": EU})
        put(broker, "orders", "EU", "US")
        snapshot = broker.snapshot()
        put(broker, "orders", "EU")
        assert [each.offset for each in broker.topics["eu"].records()] == [0, 2]
        broker.restore(snapshot)
        assert [each.offset for each in broker.topics["eu"].records()] == [0]
        broker.topics["eu"].delete()
        broker.restore(snapshot)
        assert [each.offset for each in broker.topics["eu"].records()] == [0]
        broker.reset()
        assert list(broker.topics) == []
        broker.restore(snapshot)
        assert [each.offset for each in broker.topics["eu"].records()] == [0]

"""The page's values agree with what real clients did."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from types import SimpleNamespace

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import share_groups, streams_groups
from kbroker.long_work import in_slices
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalConfig, IncrementalResource
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.share_partition.dead_letters import REJECTED, Letter
from tests.log.builders import damage
from tests.metrics.conftest import Seen

TOPICS = "kafka_server_brokertopicmetrics"


def produce(seen: Seen, topic: str, count: int) -> None:
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": seen.broker.bootstrap_servers, "linger.ms": 0})
    for number in range(count):
        producer.produce(topic, b"v%d" % number, on_delivery=lambda error, _message: told.append(error))
    assert producer.flush(20) == 0
    assert told == [None] * count


def consume(seen: Seen, topic: str, group: str, count: int) -> int:
    """Read a number of records, commit, and return the bytes of their values."""
    settings = {
        "bootstrap.servers": seen.broker.bootstrap_servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    size, left = 0, count
    try:
        while left:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            size += len(message.value() or b"")
            left -= 1
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return size


def test_what_clients_produce_and_consume(seen: Seen) -> None:
    seen.broker.topics.create("orders", partitions=3)
    produce(seen, "orders", 500)
    size = consume(seen, "orders", "billing", 500)
    values = seen.values()

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    assert value(f"{TOPICS}_messagesin_total", topic="orders") == 500
    assert value(f"{TOPICS}_messagesin_total") == 500 + value(f"{TOPICS}_messagesin_total", topic="__consumer_offsets")
    assert value(f"{TOPICS}_bytesin_total", topic="orders") > size
    assert value(f"{TOPICS}_bytesout_total", topic="orders") >= value(f"{TOPICS}_bytesin_total", topic="orders")
    assert value(f"{TOPICS}_failedproducerequests_total", topic="orders") == 0
    ends = [value("kafka_log_log_logendoffset", topic="orders", partition=str(index)) for index in range(3)]
    assert sum(ends) == 500
    sizes = [value("kafka_log_log_size", topic="orders", partition=str(index)) for index in range(3)]
    assert sum(sizes) == value(f"{TOPICS}_bytesin_total", topic="orders")
    batches = value(f"{TOPICS}_totalproducerequests_total", topic="orders")
    produced = sum(v for (name, labels), v in values.items() if is_requests(name, labels, "Produce"))
    assert 0 < produced <= batches
    assert value("kafka_network_requestmetrics_totaltimems_count", request="Produce") == produced
    assert value("kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.50") > 0
    consumers = sum(v for (name, labels), v in values.items() if is_requests(name, labels, "FetchConsumer"))
    assert consumers == sum(v for (name, labels), v in values.items() if is_requests(name, labels, "Fetch")) > 0
    assert value("kafka_server_replicamanager_leadercount") == value("kafka_server_replicamanager_partitioncount")
    assert value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert value("kafka_controller_kafkacontroller_globaltopiccount") == 2
    assert value("kafka_coordinator_group_groupmetadatamanager_numgroups") == 1


def is_requests(name: str, labels: frozenset[tuple[str, str]], request: str) -> bool:
    return name == "kafka_network_requestmetrics_requests_total" and ("request", request) in labels


def test_how_far_a_group_is_behind(seen: Seen) -> None:
    seen.broker.topics.create("orders", partitions=1)
    produce(seen, "orders", 20)
    where = {"group": "billing", "topic": "orders", "partition": "0"}
    assert seen.value("kbroker_group_lag", **where) is None
    consume(seen, "orders", "billing", 20)
    assert seen.value("kbroker_group_lag", **where) == 0
    produce(seen, "orders", 7)
    assert seen.value("kbroker_group_lag", **where) == 7
    assert seen.value("kbroker_group_offset", **where) == 20
    consumer = Consumer({"bootstrap.servers": seen.broker.bootstrap_servers, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 25)], asynchronous=False)
    consumer.close()
    assert seen.value("kbroker_group_lag", **where) == 2


def test_records_that_wait_for_their_delay_are_no_lag(seen: Seen) -> None:
    delayed = {"delivery.delay.ms": "60000", "message.timestamp.type": "LogAppendTime"}
    seen.broker.topics.create("later", partitions=1, config=delayed)
    produce(seen, "later", 5)
    where = {"topic": "later", "partition": "0"}
    consumer = Consumer({"bootstrap.servers": seen.broker.bootstrap_servers, "group.id": "waiting"})
    consumer.commit(offsets=[TopicPartition("later", 0, 0)], asynchronous=False)
    consumer.close()
    assert seen.value("kbroker_group_lag", group="waiting", **where) == 0
    assert seen.value("kbroker_partition_delayed_records", **where) == 5
    seen.broker.clock.advance(minutes=1)
    assert seen.value("kbroker_group_lag", group="waiting", **where) == 5
    assert seen.value("kbroker_partition_delayed_records", **where) == 0


def test_what_does_not_match_a_view_is_no_lag(seen: Seen) -> None:
    seen.broker.topics.create("viewed", partitions=1)
    view = {"view.source": "viewed", "view.filter": "header.region = 'EU'"}
    seen.broker.topics.create("viewed-eu", partitions=1, config=view)
    seen.broker.topics["viewed"].produce("x", headers=[("region", "EU")])
    produce(seen, "viewed", 5)
    settings = {
        "bootstrap.servers": seen.broker.bootstrap_servers,
        "group.id": "of-view",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.subscribe(["viewed-eu"])
    assert consumer.poll(20) is not None
    consumer.commit(asynchronous=False)
    consumer.close()
    assert seen.value("kbroker_group_lag", group="of-view", topic="viewed-eu", partition="0") == 0
    assert seen.value("kbroker_view_scanned_records_total") >= 6
    assert seen.value("kafka_server_brokertopicmetrics_bytesout_total", topic="viewed-eu") > 0


def test_a_deleted_topic_is_told_no_more_and_stays_in_the_sums(seen: Seen) -> None:
    seen.broker.topics.create("short-lived", partitions=2)
    produce(seen, "short-lived", 50)
    assert seen.value(f"{TOPICS}_messagesin_total", topic="short-lived") == 50
    admin = AdminClient({"bootstrap.servers": seen.broker.bootstrap_servers})
    admin.delete_topics(["short-lived"])["short-lived"].result(20)
    values = seen.values()
    assert not [name for name, labels in values if ("topic", "short-lived") in labels]
    assert values[f"{TOPICS}_messagesin_total", frozenset()] == 50
    seen.broker.topics.create("short-lived", partitions=1)
    produce(seen, "short-lived", 3)
    assert seen.value(f"{TOPICS}_messagesin_total", topic="short-lived") == 3
    assert seen.value(f"{TOPICS}_messagesin_total") == 53


def test_partitions_that_a_fetch_has_found_damaged(seen: Seen) -> None:
    topic = seen.broker.topics.create("damaged")
    topic.produce("x")
    topic.produce("y")
    partition = seen.broker.node.replicas.get(("damaged", 0))
    assert partition is not None
    damage(partition.log)
    assert seen.value("kbroker_damaged_partitions") == 0
    wanted = FetchTopic(topic="damaged", partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 20)])
    request = FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[wanted])
    with WireClient(seen.broker.bootstrap_servers) as client:
        answer = client.ask(request, 11)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
    assert seen.value("kbroker_damaged_partitions") == 1


def test_connections_by_listener(seen: Seen) -> None:
    host, _, port = seen.broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), 20):
        with socket.create_connection((host, int(port)), 20):
            assert connections(seen, 2) == (2, 2, 0)
        assert connections(seen, 1) == (1, 2, 1)
        assert seen.value("kbroker_connections") == 1


def connections(seen: Seen, count: int) -> tuple[float | None, ...]:
    """Wait for a number of connections; return how many are open, were opened, and were closed."""
    deadline = time.monotonic() + 20
    prefix, listener = "kafka_server_socket_server_metrics_connection", "PLAINTEXT"
    while True:
        found = seen.values()
        labels = frozenset({"listener": listener, "networkProcessor": "0"}.items())
        told = tuple(found.get((f"{prefix}_{what}", labels)) for what in ("count", "creation_total", "close_total"))
        if told[0] == count:
            return told
        assert time.monotonic() < deadline, told


def test_groups_by_protocol_and_state(seen: Seen) -> None:
    with WireClient(seen.broker.bootstrap_servers) as client:
        client.ask(FindCoordinatorRequest(key="app"), 3)
        waiting = streams_groups.enter("app", "one", streams_groups.reading("nowhere"))
        until(lambda: client.ask(waiting, 1).error_code == 0)
        shared = share_groups.beat("workers", "one", 0, "nowhere")
        until(lambda: client.ask(shared, 1).error_code == 0)
    prefix = "kafka_server_group_coordinator_metrics"
    assert seen.value(f"{prefix}_streams_group_count", state="NotReady") == 1
    assert seen.value(f"{prefix}_share_group_count", state="Stable") == 1
    counts = {each: seen.value(f"{prefix}_group_count", protocol=each) for each in ("classic", "share", "streams")}
    assert counts == {"classic": 0, "share": 1, "streams": 1}


def test_dead_letters_of_a_share_group(seen: Seen) -> None:
    letter = Letter(0, 0, 1, REJECTED)
    with WireClient(seen.broker.bootstrap_servers) as client:
        change = [IncrementalConfig("errors.deadletterqueue.topic.name", 0, "dlq.none")]
        asked = IncrementalAlterConfigsRequest([IncrementalResource(32, "workers", change)])
        assert client.ask(asked, 1).responses[0].error_code == 0
        topic = CreatableTopic("dlq.none", 1, 1, configs=[
            CreatableTopicConfig("errors.deadletterqueue.group.enable", "true"),
            CreatableTopicConfig("max.message.bytes", "10"),
        ])  # fmt: skip
        assert client.ask(CreateTopicsRequest([topic], 10_000), 7).topics[0].error_code == 0
    node = seen.broker.node
    partition = SimpleNamespace(topic="t", index=0, key=("t", 0))
    write = node.dead_letters.write("workers", partition, [letter])  # type: ignore[arg-type]
    asyncio.run_coroutine_threadsafe(in_slices(write), node._loop).result(20)
    prefix = "kafka_server_sharegroupmetrics_deadletterqueue"
    counted = {name: seen.value(f"{prefix}{name}", group="workers") for name in
               ("recordcount", "totalproducerequests_total", "failedproducerequests_total")}  # fmt: skip
    assert counted == {"recordcount": 0, "totalproducerequests_total": 1, "failedproducerequests_total": 1}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)

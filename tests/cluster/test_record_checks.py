"""Topics of a cluster that check their records, wherever their partitions and `_schemas` are led or move."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.admin.schemas import SchemaRegistry
from kbroker.broker.cluster_node import ClusterNode
from kbroker.embed_cluster import ClusterBroker
from kbroker.embed_security import Acl
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kbroker.protocol.records import Record, build_batch, iter_batches, read_records
from kbroker.record_checks import checks, followed_schemas
from tests.cluster.good_records import Sending
from tests.record_checks.conftest import ORDER, as_json, order, texts
from tests.registry_api.conftest import Http

PATIENCE_S = 20.0
CHECKED = {"confluent.value.schema.validation": "true"}
BAD = b"not of a schema"
FAST = {"replica.fetch.backoff.ms": 100, "replica.lag.time.max.ms": 1500, "controlled.shutdown.retry.backoff.ms": 100}
_numbers = itertools.count(1)


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


class Shop:
    """A cluster, its topics, and clients of single brokers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def register(self, topic: str, at: int, number: int = 0) -> int:
        """Register the schema of orders, or another schema, through a broker; return its id."""
        more = [{"name": f"more{number}", "type": ["null", "long"], "default": None}] if number else []
        schema = {**ORDER, "fields": [*ORDER["fields"], *more]}
        return int(Http(self.cluster.brokers[at].registry_url).register(f"{topic}-value", schema)["id"])

    def topic(self, *, replicas: int = 1, partitions: int = 3, checked: bool = True, **config: str) -> str:
        """Create a topic; the configs' names are written with `_` for `.`."""
        name = f"orders{next(_numbers)}"
        configs = {**(CHECKED if checked else {}), **{key.replace("_", "."): each for key, each in config.items()}}
        self.cluster.topics.create(name, partitions=partitions, replication_factor=replicas, config=configs)
        return name

    def leader(self, topic: str, index: int) -> int:
        """Return the leader of a partition, once all running brokers agree on it and it runs."""
        running = [each for each in self.cluster.brokers.values() if each.is_running]

        def agreed() -> int | None:
            known = [each.node.member.state.partition(topic, index) for each in running]
            leaders = {-1 if each is None else each.leader for each in known}
            leader = leaders.pop()
            return leader if not leaders and leader > 0 and self.cluster.brokers[leader].is_running else None

        return int(until(agreed))

    def away_from_schemas(self, topic: str) -> int:
        """Return a partition whose leader does not lead `_schemas`."""
        return next(each for each in range(3) if self.leader(topic, each) != self.leader("_schemas", 0))

    def move(self, topic: str, index: int, replicas: Sequence[int]) -> None:
        """Move a partition to these brokers; the first leads it."""
        wanted = ReassignablePartition(index, list(replicas))
        preferred = TopicPartitions(topic, [index])
        reassignment = AlterPartitionReassignmentsRequest(20_000, topics=[ReassignableTopic(topic, [wanted])])

        def is_moved() -> bool:
            with WireClient(self.cluster.brokers[self.controller()].bootstrap_servers) as client:
                client.ask(reassignment, 0)
                client.ask(ElectLeadersRequest(0, [preferred], 20_000), 2)
            return self.leader(topic, index) == replicas[0]

        until(is_moved)

    def controller(self) -> int:
        """Return the controller, once all running brokers agree on it and it runs."""

        def agreed() -> int | None:
            running = [each.node for each in self.cluster.brokers.values() if each.is_running]
            known = {each.member.state.controller_id for each in running}
            found = known.pop()
            return found if not known and found in {each.node_id for each in running} else None

        return int(until(agreed))

    def produce(self, topic: str, index: int, *values: bytes | None, at: int = 0) -> PartitionProduceResponse:
        """Send one batch to the partition's leader, or to a broker."""
        batch = build_batch([(0, None, each, ()) for each in values])
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(index, batch)])]
        with WireClient(self.cluster.brokers[at or self.leader(topic, index)].bootstrap_servers) as client:
            found: PartitionProduceResponse = (
                client.ask(ProduceRequest(None, -1, 20_000, data), 9).responses[0].partition_responses[0]
            )
            return found

    def records(self, topic: str, index: int, at: int = 0) -> list[Record]:
        """Return the records of a partition's leader, or of a broker's replica."""

        async def read() -> list[Record]:
            replica = self.cluster.brokers[broker].node.replicas.get((topic, index))
            assert replica is not None
            view = replica.log.read(0, 1 << 20, replica.log.log_end_offset, min_one=True).view()
            return [
                record
                for position, header in iter_batches(view)
                for record in read_records(bytes(view[position : position + header.size]), max_bytes=1 << 20)
            ]

        broker = at or self.leader(topic, index)
        return self.cluster.run(read())


@pytest.fixture(scope="module")
def of_all() -> Iterator[Shop]:
    with Cluster(brokers=3, registry=True, config=FAST) as cluster:
        yield Shop(cluster)


@pytest.fixture
def shop(of_all: Shop) -> Shop:
    """Yield a cluster whose brokers all run; a test may stop them."""
    for each in of_all.cluster.brokers.values():
        if not each.is_running:
            each.start()
    return of_all


def test_every_leader_tells_good_records_from_bad_ones(shop: Shop) -> None:
    topic = shop.topic()
    known = shop.register(topic, 1)
    assert {shop.leader(topic, index) for index in range(3)} == {1, 2, 3}
    for index in range(3):
        assert shop.produce(topic, index, order(known), None).error_code == 0
        refused = shop.produce(topic, index, order(known), order(99_999), BAD)
        assert refused.error_code == ErrorCode.INVALID_RECORD
        assert [(each.batch_index, each.batch_index_error_message) for each in refused.record_errors] == [
            (1, f"The schema with id 99999 is not registered under the subject {topic}-value."),
            (2, "The value begins with the byte 110, not with the id of a schema."),
        ]
        assert [each.value for each in shop.records(topic, index)] == [order(known), None]


def test_what_was_registered_a_moment_ago_is_accepted_at_once(shop: Shop) -> None:
    topic = shop.topic()
    index = shop.away_from_schemas(topic)
    others = [each for each in (1, 2, 3) if each != shop.leader(topic, index)]
    for number in range(100):
        known = shop.register(topic, others[number % 2], number)
        assert shop.produce(topic, index, order(known)).error_code == 0, number


def test_what_is_deleted_is_refused_soon(shop: Shop) -> None:
    topic = shop.topic()
    index = shop.away_from_schemas(topic)
    known = shop.register(topic, 1)
    assert shop.produce(topic, index, order(known)).error_code == 0
    Http(shop.cluster.brokers[1].registry_url).ok("DELETE", f"/subjects/{topic}-value")
    began = time.monotonic()
    until(lambda: shop.produce(topic, index, order(known)).error_code == ErrorCode.INVALID_RECORD)
    assert time.monotonic() - began < 5


def test_values_are_read_by_a_schema_of_another_broker(shop: Shop) -> None:
    topic = shop.topic(kbroker_schema_validation_level="parse")
    index = shop.away_from_schemas(topic)
    known = shop.register(topic, 1)
    assert shop.produce(topic, index, order(known)).error_code == 0
    refused = shop.produce(topic, index, order(known) + b"x")
    assert [each.batch_index_error_message for each in refused.record_errors] == [
        "The value does not match the Avro schema: bytes remain."
    ]


def test_letters_go_to_another_broker_before_the_rest_is_acknowledged(shop: Shop) -> None:
    letters = shop.topic(checked=False, replicas=3)
    topic = shop.topic(replicas=3, kbroker_schema_validation_deadletter_topic=letters)
    known = shop.register(topic, 1)
    for index in range(3):
        leader = shop.leader(topic, index)
        shop.move(letters, index, [each for each in (1, 2, 3) if each != leader] + [leader])
        assert shop.leader(letters, index) != leader
        answer = shop.produce(topic, index, order(known, 1), BAD, order(known, 2), order(99_999))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        found = shop.records(letters, index)
        assert [each.value for each in found] == [BAD, order(99_999)]
        told = texts(found[0].headers)  # type: ignore[arg-type]
        assert (told["__dlq.errors.topic"], told["__dlq.errors.partition"]) == (topic, str(index))
        # Before the answer, every replica has the records that the leader has kept, with the holes; and all have the
        # dead letters.
        for broker in (1, 2, 3):
            kept = [(each.offset, each.value) for each in shop.records(topic, index, broker)]
            assert kept == [(0, order(known, 1)), (2, order(known, 2))]
            assert shop.records(letters, index, broker) == found


def test_letters_wait_for_their_next_leader(shop: Shop) -> None:
    letters = shop.topic(checked=False, replicas=3, partitions=1)
    topic = shop.topic(replicas=3, partitions=1, kbroker_schema_validation_deadletter_topic=letters)
    shop.move(topic, 0, [1, 2, 3])
    shop.move(letters, 0, [2, 3, 1])
    shop.register(topic, 1)
    assert shop.produce(topic, 0, BAD).error_code == 0
    killer = threading.Thread(target=shop.cluster.brokers[2].kill)
    killer.start()
    codes = [shop.produce(topic, 0, BAD, at=1).error_code for _ in range(5)]
    killer.join()
    # A write that is uncertain is reported as an error; a client sends it again.
    assert set(codes) <= {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT}
    assert shop.produce(topic, 0, BAD, at=1).error_code == 0
    assert len(shop.records(letters, 0)) >= 2 + codes.count(ErrorCode.NONE)


@pytest.mark.long
def test_no_good_record_is_refused_while_the_leader_of_the_schemas_ends(shop: Shop) -> None:
    topic = shop.topic(replicas=1)
    shop.register(topic, 1)
    index = shop.away_from_schemas(topic)
    keeper = shop.leader(topic, index)
    brokers = shop.cluster.brokers

    def register(number: int) -> int:
        running = [each.node_id for each in brokers.values() if each.is_running]
        return shop.register(topic, running[number % len(running)], number)

    with Sending(shop.cluster.bootstrap_servers, topic, [index], register) as sending:
        for end in (ClusterBroker.kill, ClusterBroker.stop):
            sending.until_more(20, 5)
            if shop.leader("_schemas", 0) == keeper:
                shop.move("_schemas", 0, [each for each in (1, 2, 3) if each != keeper] + [keeper])
            broker = shop.cluster.brokers[shop.leader("_schemas", 0)]
            end(broker)
            sending.until_more(20, 5)
            broker.start()
            until(lambda: len(shop.cluster.brokers[keeper].node.member.state.topics["_schemas"].partitions[0].isr) == 3)
    assert sending.refused == []
    assert sending.acknowledged == sending.sent >= 80


def test_a_broker_that_leads_the_schemas_and_stops_to_lead_them_checks_on(shop: Shop) -> None:
    topic = shop.topic()
    known = shop.register(topic, 1)
    for leader in (1, 2, 3, 1):
        shop.move("_schemas", 0, [leader, *(each for each in (1, 2, 3) if each != leader)])
        for index in range(3):
            assert shop.produce(topic, index, order(known)).error_code == 0
            assert shop.produce(topic, index, order(99_999)).error_code == ErrorCode.INVALID_RECORD


def test_a_leader_that_was_cut_off_refuses_nothing_that_it_cannot_know(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_schemas, "PATIENCE_S", 1.0)
    topic = shop.topic(replicas=1)
    known = shop.register(topic, 1)
    index = next(each for each in range(3) if shop.leader(topic, each) == shop.leader("_schemas", 0))
    cut = shop.cluster.brokers[shop.leader("_schemas", 0)]
    other = shop.cluster.brokers[cut.node_id % 3 + 1]
    assert shop.produce(topic, index, order(known)).error_code == 0
    cut.cut_from_zookeeper()
    cut.expire_session()

    def has_moved() -> bool:
        partition = other.node.member.state.partition("_schemas", 0)
        return partition is not None and partition.leader not in (cut.node_id, -1)

    until(has_moved)
    newer = shop.register(topic, other.node_id, 1)
    answer = shop.produce(topic, index, order(newer), at=cut.node_id)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    cut.heal()
    until(lambda: shop.produce(topic, index, order(newer)).error_code == 0)


@contextmanager
def without_registry(cluster: Cluster) -> Iterator[None]:
    cluster.has_registry = False
    try:
        yield
    finally:
        cluster.has_registry = True


def test_the_config_needs_a_registry_at_every_broker_but_the_checks_do_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_PUBLISHED_S", 0.2)
    topic = shop.topic()
    known = shop.register(topic, 1)
    broker = shop.cluster.brokers[2]
    broker.stop()
    with without_registry(shop.cluster):
        broker.start()
    admin = AdminClient({"bootstrap.servers": shop.cluster.bootstrap_servers})
    with pytest.raises(KafkaException, match="broker 2 has no schema registry"):
        admin.create_topics([NewTopic("more", 1, 1, config=CHECKED)])["more"].result(PATIENCE_S)
    index = next(each for each in range(3) if shop.leader(topic, each) == 2)
    for first in (1, 2):  # it follows another broker, and later itself
        shop.move("_schemas", 0, [first, *(each for each in (1, 2, 3) if each != first)])
        assert shop.produce(topic, index, order(known)).error_code == 0
        assert shop.produce(topic, index, order(99_999)).error_code == ErrorCode.INVALID_RECORD
    broker.stop()
    broker.start()
    monkeypatch.undo()
    admin.create_topics([NewTopic("more", 1, 1, config=CHECKED)])["more"].result(PATIENCE_S)


def test_brokers_that_log_in_over_tls_check() -> None:
    """A copy is read over the inter-broker listener, so it needs no login to the registry."""
    users = {"alice": "secret"}
    rights = [Acl(allow_principal="User:alice", operation="All", topic="*"),
              Acl(allow_principal="User:alice", operation="All", cluster=True)]  # fmt: skip
    with Cluster(3, registry=True, registry_auth=True, tls=True, users=users, acls=rights, config=FAST) as cluster:
        topics = AdminClient(cluster.client_settings("alice").confluent_kafka)
        topics.create_topics([NewTopic("orders", 3, 1, config=CHECKED)])["orders"].result(PATIENCE_S)
        url = cluster.brokers[1].registry_url.replace("//", "//alice:secret@")
        body = {"schema": as_json(ORDER)}
        known = SchemaRegistry(url).ask("POST", "subjects", "orders-value", "versions", body=body)["id"]
        producer = Producer(cluster.client_settings("alice").confluent_kafka)
        told: list[tuple[int, int]] = []
        for index in range(3):
            for number in (known, 99_999):

                def on_delivery(error: KafkaError | None, _message: Any, number: int = number) -> None:
                    told.append((number, 0 if error is None else error.code()))

                producer.produce("orders", order(number), partition=index, on_delivery=on_delivery)
                producer.flush(PATIENCE_S)
        assert told == [(known, 0), (99_999, KafkaError.INVALID_RECORD)] * 3


def test_brokers_without_checked_topics_follow_nothing(shop: Shop) -> None:
    with Cluster(2, registry=True) as cluster:
        Http(cluster.brokers[1].registry_url).register("a", ORDER)

        def follows(node: ClusterNode) -> bool:
            return node._schemas.is_followed

        assert not any(follows(each.node) for each in cluster.brokers.values())

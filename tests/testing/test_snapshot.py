"""A restored snapshot has the old content, and existing clients continue."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, ResourceType

from kbroker import Acl, Broker, ErrorCode
from kbroker.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tests.cluster.test_share_groups import begin_at_the_earliest
from tests.testing.test_reset import alter

PATIENCE_S = 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def kept_files() -> list[str]:
    return [each for each in os.listdir(tempfile.gettempdir()) if each.startswith("kbroker-snapshot-")]


def polled(consumer: Consumer) -> Message:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = consumer.poll(0.2)
        if found is not None and found.error() is None:
            return found
    raise AssertionError("no record has come")


def transactional(broker: Broker, name: str = "pay") -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    return producer


def pay(producer: Producer, value: str, topic: str = "t") -> None:
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.commit_transaction(PATIENCE_S)


def test_records_are_as_they_were(broker: Broker) -> None:
    topic = broker.topics.create("orders", 2, config={"retention.ms": "1000000"})
    topic.produce("one", key="a", headers=[("trace", b"7")], partition=0)
    topic.produce("two", partition=1)
    broker.topics.create("untouched").produce("same")
    broker.topics.create("empty")
    before, ids = topic.records(), {name: each.topic_id for name, each in broker.node.controller.state.topics.items()}
    snapshot = broker.snapshot()
    for number in range(3):
        topic = broker.topics["orders"]
        topic.produce(f"more {number}", partition=0)
        assert len(topic.records()) == 3, "what was written since the last restore is gone"
        if number == 1:
            topic.delete()
            broker.topics["untouched"].delete()
            broker.topics.create("orders", 5).produce("another")
        broker.topics.create("new")
        broker.restore(snapshot)
        assert broker.topics["orders"].records() == before
        assert broker.topics["untouched"].values() == [b"same"]
        assert broker.topics["empty"].values() == []
        state = broker.node.controller.state
        assert {name: each.topic_id for name, each in state.topics.items()} == ids
        assert dict(state.topics["orders"].configs) == {"retention.ms": "1000000"}


def test_settings_are_as_they_were() -> None:
    acls = [Acl(allow_principal="User:alice", producer=True, topic="a")]
    with Broker({"super.users": "User:ANONYMOUS"}, acls=acls) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        broker.topics.create("a")
        alter(admin, ResourceType.BROKER, "1", "log.retention.ms", "5000")
        alter(admin, ResourceType.TOPIC, "a", "retention.ms", "7000")
        broker.clock.advance(hours=5)
        wanted, ahead_ms = broker.node.controller.state, broker.clock.ahead_ms
        snapshot = broker.snapshot()
        alter(admin, ResourceType.BROKER, "1", "log.retention.ms", "6000")
        alter(admin, ResourceType.TOPIC, "a", "retention.ms", "8000")
        alter(admin, ResourceType.GROUP, "g", "consumer.session.timeout.ms", "50000")
        admin.create_partitions([NewPartitions("a", 3)])["a"].result(PATIENCE_S)
        broker.clock.advance(hours=5)
        fault = broker.faults.fail("Produce", ErrorCode.KAFKA_STORAGE_ERROR)
        broker.restore(snapshot)
        now = broker.node.controller.state
        assert (now.broker_configs, now.group_configs, now.acls) == (
            wanted.broker_configs,
            wanted.group_configs,
            wanted.acls,
        )
        assert dict(now.topics["a"].configs) == {"retention.ms": "7000"}
        assert len(now.topics["a"].partitions) == 1
        assert (broker.clock.ahead_ms, broker.faults.active, fault.hits) == (ahead_ms, (), 0)


def test_deleted_and_compacted_records_come_back(broker: Broker) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "60000", "min.cleanable.dirty.ratio": "0.01"}
    compacted = broker.topics.create("compacted", config=settings)
    for value in ("1", "2", "3"):
        compacted.produce(value, key="k")
    cut = broker.topics.create("cut")
    for value in ("1", "2", "3"):
        cut.produce(value)
    _delete_below(broker, 1)
    snapshot = broker.snapshot()
    _delete_below(broker, 3)
    broker.clock.advance(hours=25)
    compacted.produce("4", key="k")
    broker.clock.advance(hours=25)
    broker.wait_for(lambda _: len(compacted.values()) < 4)
    for _ in range(2):
        broker.restore(snapshot)
        assert compacted.values() == [b"1", b"2", b"3"]
        assert [(each.offset, each.value) for each in cut.records()] == [(1, b"2"), (2, b"3")]


def _delete_below(broker: Broker, offset: int) -> None:
    wanted = DeleteRecordsTopic("cut", [DeleteRecordsPartition(0, offset)])
    broker._asking().ask(DeleteRecordsRequest([wanted], 1000), DeleteRecordsResponse)


def test_closed_segments_and_aborted_transactions_come_back(broker: Broker) -> None:
    topic = broker.topics.create("t", config={"segment.bytes": "1048576"})
    producer = transactional(broker)
    producer.begin_transaction()
    producer.produce("t", "void")
    assert producer.flush(PATIENCE_S) == 0
    producer.abort_transaction(PATIENCE_S)
    for number in range(6):
        topic.produce(bytes([number]) * 400_000)
    pay(producer, "paid")
    values = topic.values()
    assert len(values) == 7
    log = broker.node.replicas.leader("t", 0).log
    assert len(log.segments) > 1
    snapshot = broker.snapshot()
    topic.delete()
    broker.restore(snapshot)
    assert topic.values() == values
    assert [each.transaction for each in topic.records()] == ["aborted", *[None] * 6, "committed"]


def test_groups_have_their_offsets_and_no_members(broker: Broker) -> None:
    broker.topics.create("t", 2).produce("one", partition=0)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    member = Consumer(settings)
    member.subscribe(["t"])
    assert polled(member).value() == b"one"
    member.commit(asynchronous=False)
    snapshot = broker.snapshot()
    assert len(broker.groups["g"].members) == 1
    broker.topics["t"].produce("two", partition=0)
    assert polled(member).value() == b"two"
    member.commit(asynchronous=False)
    assert broker.groups["g"].offsets[("t", 0)] == 2
    member.close()
    broker.restore(snapshot)
    assert broker.groups["g"].offsets[("t", 0)] == 1
    assert (broker.groups["g"].state, broker.groups["g"].members) == ("Empty", [])
    broker.topics["t"].produce("another two", partition=0)
    began = time.monotonic()
    newcomer = Consumer(settings)
    newcomer.subscribe(["t"])
    assert polled(newcomer).value() == b"another two"
    assert time.monotonic() - began < 6, "nobody waits for the member that the snapshot has seen"
    newcomer.close()


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_goes_on(broker: Broker, protocol: str) -> None:
    topic = broker.topics.create("t")
    topic.produce("one")
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": "g",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings |= {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
    consumer = Consumer(settings)
    consumer.subscribe(["t"])
    assert polled(consumer).value() == b"one"
    consumer.commit(asynchronous=False)
    snapshot = broker.snapshot()
    for value in ("two", "three"):
        topic.produce(value)
        found = polled(consumer)
        assert (found.value(), found.offset()) == (value.encode(), 1), "it begins where the snapshot's offset is"
        broker.restore(snapshot)
        broker.wait_for(lambda _: (consumer.poll(0.1), broker.groups["g"].members)[1], timeout=PATIENCE_S)
    consumer.close()


def test_an_idempotent_producer_goes_on(broker: Broker) -> None:
    topic = broker.topics.create("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    told: list[object] = []

    def send(value: str) -> None:
        producer.produce("t", value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(PATIENCE_S) == 0

    send("before")
    snapshot = broker.snapshot()
    for number in range(3):
        send(f"lost {number}")
        send(f"lost {number}, too")
        broker.restore(snapshot)
        assert topic.values() == [b"before"]
    send("after")
    assert topic.values() == [b"before", b"after"]
    assert told == [None] * 8


def test_a_transactional_producer_goes_on(broker: Broker) -> None:
    topic = broker.topics.create("t")
    producer = transactional(broker)
    pay(producer, "before")
    snapshot = broker.snapshot()
    for number in range(3):
        pay(producer, f"lost {number}")
        broker.restore(snapshot)
        assert topic.values() == [b"before"]
    pay(producer, "after")
    assert topic.values() == [b"before", b"after"]


def test_who_had_a_transaction_open_is_fenced(broker: Broker) -> None:
    topic = broker.topics.create("t")
    producer = transactional(broker)
    pay(producer, "before")
    snapshot = broker.snapshot()
    producer.begin_transaction()
    producer.produce("t", "half")
    assert producer.flush(PATIENCE_S) == 0
    broker.restore(snapshot)
    producer.produce("t", "the other half")
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert topic.values() == [b"before"]
    again = transactional(broker)
    pay(again, "after")
    assert topic.values() == [b"before", b"after"]


def test_a_transaction_that_was_open_is_aborted(broker: Broker) -> None:
    topic = broker.topics.create("t")
    producer = transactional(broker)
    producer.begin_transaction()
    producer.produce("t", "open then")
    assert producer.flush(PATIENCE_S) == 0
    snapshot = broker.snapshot()
    assert [each.transaction for each in topic.records()] == ["open"]
    producer.commit_transaction(PATIENCE_S)
    assert topic.values() == [b"open then"]
    broker.restore(snapshot)
    assert [each.transaction for each in topic.records()] == ["aborted"]
    again = transactional(broker)
    pay(again, "after")
    assert topic.values() == [b"after"]


def test_a_consumer_behind_the_end_hears_of_it(broker: Broker) -> None:
    topic = broker.topics.create("t")
    topic.produce("one")
    snapshot = broker.snapshot()
    for value in ("two", "three", "four"):
        topic.produce(value)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    assert [polled(consumer).value() for _ in range(4)][-1] == b"four"
    broker.restore(snapshot)
    topic.produce("another")
    found = polled(consumer)
    assert (found.offset(), found.value()) == (1, b"another"), "librdkafka goes on where the logs part"
    consumer.close()


def test_what_was_restored_is_there_after_a_restart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        topic = broker.topics.create("t")
        topic.produce("one")
        producer = transactional(broker)
        pay(producer, "paid")
        snapshot = broker.snapshot()
        topic.produce("two")
        topic.delete()
        broker.restore(snapshot)
        topic.produce("three")
    with Broker(data_dir=tmp_path) as broker:
        assert broker.topics["t"].values() == [b"one", b"paid", b"three"]
        pay(transactional(broker), "paid again")
        assert broker.topics["t"].values()[-1] == b"paid again"


def test_snapshots_go(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # tests of other processes also keep snapshots
    before = set(kept_files())
    broker.topics.create("t").produce("one")
    first, second, third = broker.snapshot(), broker.snapshot(), broker.snapshot()
    assert len(set(kept_files()) - before) == 3
    first.remove()
    assert len(set(kept_files()) - before) == 2
    with pytest.raises(RuntimeError):
        broker.restore(first)
    del second
    gc.collect()
    assert len(set(kept_files()) - before) == 1
    with Broker() as other, pytest.raises(ValueError, match="another broker"):
        other.restore(third)
    broker.stop()
    assert set(kept_files()) <= before


@pytest.mark.long
def test_a_hundred_topics(broker: Broker) -> None:
    for number in range(100):
        broker.topics.create(f"t{number}").produce("one")
    began = time.perf_counter()
    snapshot = broker.snapshot()
    taken = time.perf_counter() - began
    broker.topics["t7"].produce("two")
    began = time.perf_counter()
    broker.restore(snapshot)
    restored = time.perf_counter() - began
    assert all(broker.topics[f"t{number}"].values() == [b"one"] for number in range(100))
    assert (taken, restored) < (5.0, 10.0), "hundreds of times what they take"


QUICK_SHARE_GROUPS = {
    "group.share.assignment.interval.ms": 0,
    "group.share.heartbeat.interval.ms": 200,
    "group.share.min.heartbeat.interval.ms": 100,
}


def test_a_share_group_goes_on_where_the_snapshot_is() -> None:
    with Broker(QUICK_SHARE_GROUPS) as broker:
        _share_group_goes_on(broker)


def _share_group_goes_on(broker: Broker) -> None:
    topic = broker.topics.create("t")
    topic.produce("one")
    topic.produce("two")
    begin_at_the_earliest(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), "g")

    def worked(count: int) -> list[bytes]:
        """Join as a new member, accept records until there are `count`, and return them."""
        consumer = ShareConsumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "share.acknowledgement.mode": "explicit"}
        )
        consumer.subscribe(["t"])
        found: list[bytes] = []

        def polled(_: Broker) -> bool:
            for message in consumer.poll(0.2):
                consumer.acknowledge(message, 1)
                found.append(message.value())
            consumer.commit_sync(10.0)
            return len(found) >= count

        broker.wait_for(polled, timeout=PATIENCE_S)
        consumer.close()
        return found

    assert worked(2) == [b"one", b"two"]
    snapshot = broker.snapshot()
    topic.produce("three")
    assert worked(1) == [b"three"]
    broker.restore(snapshot)
    topic.produce("three, again")
    assert worked(1) == [b"three, again"], "what was accepted before the snapshot is done"

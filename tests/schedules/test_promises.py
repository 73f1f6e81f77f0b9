"""What docs/schedules.md promises, on a running broker: each way to plan, to replace and to cancel a record."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from kbroker import Broker
from kbroker.scheduling.scheduled import ScheduledPartition
from kbroker.testing.topics import StoredRecord

SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
PATIENCE_S = 30.0
SOON_MS = "20000"
"""Longer than any request of a test takes on a busy machine; become_due moves the clock beyond it."""
FAR = "2200-01-01T00:00:00Z"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class Plan:
    """A schedule topic with a target of three partitions."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = f"later{next(_numbers)}"
        self.target = f"{self.name}.target"
        broker.topics.create(self.target, partitions=3)
        broker.topics.create(self.name, config={**SCHEDULED, "schedule.target.topic": self.target})
        self.producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})

    def put(self, key: str | None, value: bytes | None = b"v", producer: Any = None, **headers: str) -> int:
        """Write a record; return its offset. `_` in the names of headers stands for `-`."""
        found: list[Any] = []
        named: list[tuple[str, Any]] = [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]
        using = producer or self.producer
        using.produce(self.name, value, key, headers=named, on_delivery=lambda error, sent: found.append((error, sent)))
        assert using.flush(PATIENCE_S) == 0
        error, sent = found[0]
        assert error is None, error
        return int(sent.offset())

    def delivered(self) -> list[StoredRecord]:
        return list(self.broker.topics[self.target].records())

    def arrive(self, number: int) -> list[StoredRecord]:
        """Return what was delivered when it is as many records."""
        until(lambda: len(self.delivered()) >= number)
        found = self.delivered()
        assert len(found) == number
        return found

    def become_due(self) -> None:
        self.broker.clock.advance(ms=int(SOON_MS) + 1)

    def nothing_more_than(self, number: int) -> None:
        """Check that a later record is delivered, and nothing else meanwhile."""
        self.put("last", x_delay="0")
        assert [each.key for each in self.arrive(number + 1)].count(b"last") == 1

    def configure(self, **configs: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        entries = [
            ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@pytest.fixture
def plan(broker: Broker) -> Plan:
    return Plan(broker)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def now_ms() -> int:
    return int(time.time() * 1000)


def headers_of(record: StoredRecord) -> dict[str, bytes | None]:
    return dict(record.headers)


def test_a_record_is_delivered_when_it_is_due_and_not_before(plan: Plan) -> None:
    began = now_ms()
    offset = plan.put("k", b"value", x_delay="700", trace="t", __schedule_at="0")
    assert plan.delivered() == []
    (found,) = plan.arrive(1)
    headers = headers_of(found)
    due = int(headers["__schedule.at"] or b"")
    assert (found.key, found.value) == (b"k", b"value")
    assert headers == {
        "trace": b"t", "--schedule-at": b"0", "__schedule.topic": plan.name.encode(), "__schedule.partition": b"0",
        "__schedule.offset": b"%d" % offset, "__schedule.at": b"%d" % due,
    }  # fmt: skip
    assert began + 700 <= due <= found.timestamp <= now_ms()


@pytest.mark.parametrize(
    "headers",
    [
        {"x_deliver_after": "PT0.2S"}, {"x_deliver_after": "200ms"}, {"x_delay": "200"}, {"x_schedule": "@at 0"},
        {"x_deliver_at": "0"}, {"x_deliver_at": "1970-01-01T00:00:00Z"},
    ],
)  # fmt: skip
def test_ways_to_name_a_time(plan: Plan, headers: dict[str, str]) -> None:
    plan.put("k", **headers)  # type: ignore[arg-type]
    plan.arrive(1)


def test_headers_name_the_place(plan: Plan, broker: Broker) -> None:
    other = f"{plan.name}.other"
    broker.topics.create(other, partitions=4)
    plan.put("k", x_delay="0", x_deliver_to=other, x_deliver_partition="3", x_deliver_key="new")
    until(lambda: bool(list(broker.topics[other].records())))
    (found,) = broker.topics[other].records()
    assert (found.partition, found.key) == (3, b"new")
    assert plan.delivered() == []


def test_a_key_chooses_the_partition_as_in_kafkas_clients(plan: Plan) -> None:
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        plan.put(key, x_delay="0")
    found = {each.key: each.partition for each in plan.arrive(20)}
    from kafka.partitioner.default import murmur2

    assert found == {key.encode(): (murmur2(key.encode()) & 0x7FFFFFFF) % 3 for key in keys}


def test_a_newer_record_with_the_key_replaces(plan: Plan) -> None:
    plan.put("k", b"old", x_delay=SOON_MS)
    plan.put("k", b"new", x_delay=SOON_MS)
    plan.become_due()
    assert [each.value for each in plan.arrive(1)] == [b"new"]
    plan.nothing_more_than(1)


def test_a_record_without_value_cancels(plan: Plan) -> None:
    plan.put("k", x_delay=SOON_MS)
    plan.put("k", None)
    plan.become_due()
    plan.nothing_more_than(0)


def test_records_without_key_stand_alone(plan: Plan) -> None:
    for _ in range(3):
        plan.put(None, x_delay="100")
    assert [each.key for each in plan.arrive(3)] == [None] * 3


def test_what_repeats_comes_again_until_it_is_cancelled(plan: Plan) -> None:
    plan.put("k", x_schedule="@every 1s")
    until(lambda: len(plan.delivered()) >= 3)
    plan.put("k", None)
    found = plan.delivered()
    dues = [int(headers_of(each)["__schedule.at"] or b"") for each in found]
    assert {second - first for first, second in itertools.pairwise(dues)} == {1000}
    time.sleep(1.2)  # the time of the next one
    assert len(plan.delivered()) <= len(found) + 1


def test_records_of_transactions_count_when_they_are_committed(plan: Plan, broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": plan.name})
    producer.init_transactions(PATIENCE_S)
    for commit in (False, True):
        producer.begin_transaction()
        plan.put(f"{commit}", producer=producer, x_delay="0")
        time.sleep(0.2)
        assert plan.delivered() == []
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    assert [each.key for each in plan.arrive(1)] == [b"True"]
    plan.nothing_more_than(1)


def test_what_users_delete_is_cancelled(plan: Plan, broker: Broker) -> None:
    plan.put("k", x_delay=SOON_MS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    partition = TopicPartition(plan.name, 0, -1)
    admin.delete_records([partition])[partition].result(PATIENCE_S)
    plan.become_due()
    plan.nothing_more_than(0)


def test_records_after_a_deletion_are_schedules_if_the_index_had_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion removes the mark with which a schedule topic begins."""
    opened, deleted = threading.Event(), threading.Event()
    follow_from = ScheduledPartition._open

    async def stop_there(self: ScheduledPartition) -> None:
        await follow_from(self)
        opened.set()
        await asyncio.to_thread(deleted.wait, PATIENCE_S)

    with Broker() as broker:
        with monkeypatch.context() as patches:
            patches.setattr(ScheduledPartition, "_open", stop_there)
            plan = Plan(broker)
            assert opened.wait(PATIENCE_S)
        plan.put("k", x_delay=SOON_MS)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        partition = TopicPartition(plan.name, 0, -1)
        admin.delete_records([partition])[partition].result(PATIENCE_S)
        deleted.set()
        plan.become_due()
        plan.nothing_more_than(0)


def test_turned_off_it_waits_and_turned_on_it_goes_on(plan: Plan) -> None:
    plan.put("k", x_delay=SOON_MS)
    plan.configure(schedule_enable="false", schedule_target_topic="")
    plan.put("plain")  # an ordinary topic takes it
    plan.become_due()
    assert plan.delivered() == []
    plan.configure(schedule_enable="true", schedule_target_topic=plan.target)
    assert [each.key for each in plan.arrive(1)] == [b"k"]
    plan.nothing_more_than(1)


def test_a_target_that_comes_back_gets_what_is_late(plan: Plan, broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    plan.put("k", x_delay=SOON_MS)
    plan.put("other", x_deliver_at=FAR)
    admin.delete_topics([plan.target])[plan.target].result(PATIENCE_S)
    plan.become_due()
    admin.create_topics([NewTopic(plan.target, 3, 1)])[plan.target].result(PATIENCE_S)
    assert [each.key for each in plan.arrive(1)] == [b"k"]


def test_a_refused_record_holds_no_other_up(plan: Plan, broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    plan.put("large", b"x" * 3000, x_delay=SOON_MS)
    for number in range(20):
        plan.put(f"small-{number}", x_delay=SOON_MS)
    entry = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, plan.target, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    plan.become_due()
    assert {each.key for each in plan.arrive(20)} == {f"small-{number}".encode() for number in range(20)}
    entry = ConfigEntry("max.message.bytes", "20000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, plan.target, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    assert b"large" in {each.key for each in plan.arrive(21)}


def test_the_test_kits_clock_moves_schedules() -> None:
    with Broker() as broker:
        plan = Plan(broker)
        plan.put("once", x_deliver_after="PT10H")
        plan.put("daily", x_schedule="@every 1d")
        broker.clock.advance(hours=11)
        assert [each.key for each in plan.arrive(1)] == [b"once"]
        for number in range(3):
            broker.clock.advance(hours=24)
            assert [each.key for each in plan.arrive(2 + number)].count(b"daily") == 1 + number


def test_a_target_that_comes_back_with_fewer_partitions_gets_what_is_late(plan: Plan, broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(9):  # whose hashes had chosen each of three partitions
        plan.put(f"key-{number}", x_delay=SOON_MS)
    plan.put("explicit", x_delay=SOON_MS, x_deliver_partition="2")
    admin.delete_topics([plan.target])[plan.target].result(PATIENCE_S)
    plan.become_due()
    admin.create_topics([NewTopic(plan.target, 1, 1)])[plan.target].result(PATIENCE_S)
    assert {each.partition for each in plan.arrive(9)} == {0}
    admin.create_partitions([NewPartitions(plan.target, 3)])[plan.target].result(PATIENCE_S)
    assert {each.key for each in plan.arrive(10) if each.partition == 2} == {b"explicit"}

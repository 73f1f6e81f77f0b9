"""A record that a group does not get past is named: in the list of groups, in the metrics and in the log."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.groups import ListGroupsRequest, StuckPartition

PATIENCE_S = 30.0
ACCEPT, RELEASE = 1, 2
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    quick = {f"group.share.{name}heartbeat.interval.ms": "200" for name in ("min.", "")}
    with Broker({"group.initial.rebalance.delay.ms": "0", **quick}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"orders{next(_numbers)}"
    broker.topics.create(name)
    for number in range(5):
        broker.topics[name].produce(f"order {number}")
    return name


@pytest.fixture(params=["classic", "consumer"])
def consumer(broker: Broker, request: pytest.FixtureRequest) -> Callable[[str], Consumer]:
    settings = {"group.protocol": request.param, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    return lambda group: Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, **settings})


def stuck(broker: Broker, group: str) -> list[StuckPartition]:
    with WireClient(broker.bootstrap_servers) as wire:
        found = {each.group_id: each.stuck for each in wire.ask(ListGroupsRequest(), 5).groups}
    return found.get(group, [])


def until(broker: Broker, holds: Callable[[], bool]) -> None:
    """Let the broker look again and again until `holds`."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        broker.clock.advance(seconds=2)
        time.sleep(0.02)


def read_to(reader: Consumer, offset: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        message = reader.poll(0.1)
        if message is not None and message.error() is None and message.offset() == offset:
            return
        assert time.monotonic() < deadline


def commit(reader: Consumer, topic: str, offset: int) -> None:
    reader.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def fail_at(make: Callable[[str], Consumer], group: str, topic: str, offset: int, *, begin: bool = False) -> None:
    """Be a member that ends when it meets a record."""
    reader = make(group)
    reader.subscribe([topic])
    read_to(reader, offset)
    if begin:
        commit(reader, topic, offset)
    reader.close()


def test_members_that_leave_at_the_same_record_one_after_the_other(
    broker: Broker, topic: str, consumer: Callable[[str], Consumer], caplog: pytest.LogCaptureFixture
) -> None:
    group = f"group-{topic}"
    caplog.set_level(logging.WARNING)
    fail_at(consumer, group, topic, 2, begin=True)
    fail_at(consumer, group, topic, 2)
    until(broker, lambda: True)
    assert stuck(broker, group) == []
    fail_at(consumer, group, topic, 2)
    until(broker, lambda: bool(stuck(broker, group)))
    (found,) = stuck(broker, group)
    assert (found.topic, found.partition, found.offset, found.cause, found.times) == (topic, 0, 2, "left", 3)
    said = [each for each in caplog.messages if f"group {group} does not get past offset 2 of {topic}-0" in each]
    assert len(said) == 1
    reader = consumer(group)
    reader.subscribe([topic])
    read_to(reader, 2)
    commit(reader, topic, 3)
    until(broker, lambda: stuck(broker, group) == [])
    reader.close()


def test_members_that_leave_where_no_record_waits(
    broker: Broker, topic: str, consumer: Callable[[str], Consumer]
) -> None:
    group = f"group-{topic}"
    for _ in range(4):
        reader = consumer(group)
        reader.subscribe([topic])
        deadline = time.monotonic() + PATIENCE_S
        while not reader.assignment():
            assert time.monotonic() < deadline
            reader.poll(0.05)
        commit(reader, topic, 5)
        reader.close()
        broker.clock.advance(seconds=2)
    broker.clock.advance(seconds=2)
    assert stuck(broker, group) == []


@pytest.mark.parametrize("is_view", [False, True])
def test_a_member_that_reads_a_record_again_and_again(
    broker: Broker, topic: str, consumer: Callable[[str], Consumer], is_view: bool
) -> None:
    if is_view:
        source, topic = topic, f"view-{topic}"
        broker.topics.create(topic, 1, config={"view.source": source, "view.filter": "value LIKE 'order%'"})
    group = f"group-{topic}"
    reader = consumer(group)
    reader.subscribe([topic])
    read_to(reader, 2)
    commit(reader, topic, 2)

    def again() -> bool:
        reader.seek(TopicPartition(topic, 0, 2))
        read_to(reader, 2)
        return bool(stuck(broker, group))

    until(broker, again)
    (found,) = stuck(broker, group)
    assert (found.topic, found.partition, found.offset, found.cause) == (topic, 0, 2, "read again")
    assert found.times >= 5
    until(broker, lambda: stuck(broker, group) == [])  # it has stopped
    reader.close()


def test_a_share_group_that_delivers_a_record_again(broker: Broker, topic: str) -> None:
    group = f"share-{topic}"
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    next(iter(admin.incremental_alter_configs([resource]).values())).result(PATIENCE_S)
    reader = ShareConsumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    reader.subscribe([topic])
    refused: list[int] = []

    def refuse() -> bool:
        """Accept all records but the first, which is released for another delivery."""
        for message in reader.poll(0.2):
            reader.acknowledge(message, RELEASE if message.offset() == 0 else ACCEPT)
            refused.extend([0] if message.offset() == 0 else [])
        return bool(stuck(broker, group))

    until(broker, refuse)
    (found,) = stuck(broker, group)
    assert (found.topic, found.partition, found.offset, found.cause) == (topic, 0, 0, "delivered again")
    assert found.times >= 3
    assert len(refused) >= 3
    while len(refused) < 5:  # then the group gives the record up
        refuse()
    reader.commit_sync()
    until(broker, lambda: stuck(broker, group) == [])
    reader.close()

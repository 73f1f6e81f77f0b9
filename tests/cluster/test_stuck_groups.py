"""A record that a group does not get past is named, also if one broker coordinates the group and another one leads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.broker import stuck_groups
from kbroker.group_coordinator.stuck_offsets import LOOKS
from kbroker.handlers.authorized.groups import rereads_for_brokers
from kbroker.handlers.authorized.required_rights import CLUSTER_ACTION
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    StuckPartition,
)

PATIENCE_S = 30.0
LOOK_MS = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_groups, "LOOK_MS", LOOK_MS)


@pytest.fixture(params=["left", "read again"])
def cause(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def coordinator_of(cluster: Cluster, group: str) -> int | None:
    for number, broker in cluster.brokers.items():
        if broker.node.groups.loaded_shard(group) is not None:
            return int(number)
    return None


def stuck(cluster: Cluster, group: str) -> list[StuckPartition]:
    found: list[StuckPartition] = []
    for broker in cluster.brokers.values():
        with WireClient(broker.bootstrap_servers) as wire:
            found += [
                each for one in wire.ask(ListGroupsRequest(), 5).groups if one.group_id == group for each in one.stuck
            ]
    return found


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_record_is_named(cluster: Cluster, cause: str) -> None:
    topic = cause.replace(" ", "-")
    cluster.topics.create(topic, 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(3):
        producer.produce(topic, str(number))
    assert producer.flush(PATIENCE_S) == 0
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
    warm = Consumer({**settings, "group.id": "warm"})
    until(lambda: warm.committed([TopicPartition(topic, 0)], PATIENCE_S) is not None)  # creates the offsets topic
    warm.close()
    leader = cluster.topics[topic].leader(0)
    names = (f"{topic}-{number}" for number in itertools.count())
    group = next(each for each in names if coordinator_of(cluster, each) not in (None, leader))

    def member() -> Consumer:
        consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False})
        consumer.subscribe([topic])
        found = None
        deadline = time.monotonic() + PATIENCE_S
        while found is None or found.error() or found.offset() != 1:
            assert time.monotonic() < deadline
            found = consumer.poll(0.5)
            if found is not None and not found.error() and found.offset() == 0:
                consumer.commit(found, asynchronous=False)
        return consumer

    if cause == "left":
        for _ in range(3):
            member().close()
        until(lambda: bool(stuck(cluster, group)))
        (found,) = stuck(cluster, group)
    else:
        consumer = member()

        records = []

        def again() -> bool:
            consumer.seek(TopicPartition(topic, 0, 1))
            consumer.poll(1.0)
            records[:] = stuck(cluster, group)  # the evidence ends with the member
            return bool(records)

        until(again)
        (found,) = records
        consumer.close()
    assert (found.topic, found.partition, found.offset, found.cause) == (topic, 0, 1, cause)


def test_nobody_is_asked_while_groups_have_read_all_there_is(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    asked: list[int] = []
    look = stuck_groups.StuckGroups._rereads_elsewhere

    async def counted(search: stuck_groups.StuckGroups) -> list[stuck_groups.Reread]:
        looks.append(search._node_id)
        return await look(search)

    async def ask(_search: stuck_groups.StuckGroups, _peers: object, node_id: int) -> list[stuck_groups.Reread]:
        asked.append(node_id)
        return []

    cluster.topics.create("quiet", 3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(30):
        producer.produce("quiet", str(number), partition=number % 3)
    assert producer.flush(PATIENCE_S) == 0
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest", "group.id": "quiet"}
    reader = Consumer({**settings, "enable.auto.commit": False})
    reader.subscribe(["quiet"])
    read = 0
    while read < 30:
        message = reader.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        read += 1
    monkeypatch.setattr(stuck_groups.StuckGroups, "_rereads_elsewhere", counted)
    monkeypatch.setattr(stuck_groups.StuckGroups, "_ask", ask)
    reader.commit(offsets=[TopicPartition("quiet", each, 0) for each in range(3)], asynchronous=False)
    until(lambda: bool(asked))  # somebody might read again what is not committed
    reader.commit(asynchronous=False)
    until(lambda: reader.committed([TopicPartition("quiet", 0)], PATIENCE_S)[0].offset > 0)

    def looks_pass(number: int) -> None:
        looks.clear()
        until(lambda: all(looks.count(each) > number for each in cluster.brokers))

    looks_pass(2)
    asked.clear()
    looks_pass(2 * LOOKS)
    assert asked == []
    reader.close()


@pytest.mark.parametrize("is_broker", [True, False])
def test_only_brokers_learn_who_fetches(is_broker: bool) -> None:
    asked: list[bool] = []
    principal = object()
    rights = SimpleNamespace(
        principal=principal, on_cluster=lambda operation: is_broker and operation == CLUSTER_ACTION
    )
    ctx: Any = SimpleNamespace(rights=rights, principal=principal)
    guarded = rereads_for_brokers(lambda _ctx, request: asked.append(request.wants_rereads), DescribeGroupsResponse)
    guarded(ctx, DescribeGroupsRequest(wants_rereads=True))
    assert asked == [is_broker]

"""After a reset, a broker is as at its start, and existing clients continue."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from kbroker import Acl, Broker, ErrorCode

PATIENCE_S = 20.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(
        {"super.users": "User:ANONYMOUS"}, acls=[Acl(allow_principal="User:alice", producer=True, topic="a")]
    ) as made:
        yield made


def alter(admin: AdminClient, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def test_all_is_gone_that_was_not_there_at_the_start(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    first = broker.node.controller.state
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = broker.topics.create("orders", 3)
    topic.produce("one")
    group = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "billing"})
    group.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "pay"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("orders", "open")
    assert producer.flush(PATIENCE_S) == 0
    alter(admin, ResourceType.BROKER, "1", "log.retention.ms", "5000")
    alter(admin, ResourceType.GROUP, "billing", "consumer.session.timeout.ms", "50000")
    acl = AclBinding(
        ResourceType.TOPIC,
        "b",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([acl])[acl].result(PATIENCE_S)
    fault = broker.faults.fail("EndTxn", ErrorCode.INVALID_TXN_STATE)
    broker.clock.set(datetime(2031, 1, 1, tzinfo=UTC))
    assert broker.requests.of("CreateAcls")
    group.close()

    with caplog.at_level(logging.WARNING, logger="kbroker"):
        broker.reset()
    now = broker.node.controller.state
    assert (list(now.topics), list(broker.groups), broker.faults.active) == ([], [], ())
    assert (now.broker_configs, now.group_configs, now.acls) == (first.broker_configs, first.group_configs, first.acls)
    assert (len(broker.requests), fault.hits) == (0, 0)
    assert broker.clock.now().year < 2031
    # Ignore warnings about a slow machine, and of ZooKeeper clients that earlier tests have left: this broker has none.
    others = ("loop_watch", "kazoo")
    told = [each for each in caplog.records if each.name.startswith("kbroker") and each.levelno >= logging.WARNING]
    assert not [each for each in told if not each.name.endswith(others)]


@pytest.mark.long
def test_clients_go_on(broker: Broker) -> None:
    broker.topics.create("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe(["t"])
    for value in ("before", "after"):
        producer.produce("t", value)
        assert producer.flush(PATIENCE_S) == 0
        found = broker.wait_for(lambda _: consumer.poll(0.5), timeout=PATIENCE_S)
        while found.error() is not None:
            found = broker.wait_for(lambda _: consumer.poll(0.5), timeout=PATIENCE_S)
        assert found.value() == value.encode()
        if value == "before":
            broker.reset()
            broker.topics.create("t")
    consumer.close()


def test_again_and_again(broker: Broker) -> None:
    for number in range(20):
        broker.topics.create("same").produce(str(number))
        assert broker.topics["same"].values() == [str(number).encode()]
        broker.reset()
        assert not broker.topics

"""Share groups over topics with remote storage: both tiers, the begin at a time, dead letters, large records."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kbroker import Broker
from tests.tiers.test_broker import (
    BEGAN_MS,
    LOCAL,
    PATIENCE_S,
    TOPIC,
    admin,
    alter,
    broker,
    create,
    offset,
    produce,
    settings,
    tiered,
    until,
)

__all__ = ["broker"]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_share_group_reads_both_tiers(broker: Broker, isolation: str) -> None:
    create(broker, remote_copy_lag_ms="3600000", local_retention_bytes="-2")
    client = admin(broker)
    configs = {"share.auto.offset.reset": "earliest", "share.isolation.level": isolation}
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in configs.items()]
    resource = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    produce(broker, 0, 500)
    produce(broker, 500, 100, **{"transactional.id": "t"})
    produce(broker, 600, 400)
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "workers"})
    consumer.subscribe([TOPIC])
    taken: list[bytes] = []
    until(lambda: taken.extend(each.key() for each in consumer.poll(0.2)) or taken)
    consumer.close()  # acknowledges what it has
    alter(broker, remote_copy_lag_ms="0", local_retention_bytes="30000")
    tiered(broker)
    assert broker.groups["workers"].lag() > 300
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "workers"})
    consumer.subscribe([TOPIC])
    until(lambda: taken.extend(each.key() for each in consumer.poll(0.2)) or len(set(taken)) == 1000)
    until(lambda: not consumer.poll(0.2) and broker.groups["workers"].lag() == 0)  # a poll acknowledges the one before
    consumer.close()
    other = ConfigResource(ResourceType.GROUP, "newcomers", incremental_configs=entries)
    client.incremental_alter_configs([other])[other].result(PATIENCE_S)
    newcomer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "newcomers"})
    newcomer.subscribe([TOPIC])
    seen: set[bytes | None] = set()
    until(lambda: seen.update(each.key() for each in newcomer.poll(0.2)) or len(seen) == 1000)
    newcomer.close()


def test_share_groups_begin_at_a_time_and_give_up_records_in_remote_storage(broker: Broker) -> None:
    """A dead letter of a record that is no longer on the local disk has the record's key and value."""
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    assert offset(broker, LOCAL) > 600
    ago_s = int(time.time()) - BEGAN_MS // 1000 - 30  # the record 300 is so old
    broker.topics.create("dlq.letters", partitions=1, config={"errors.deadletterqueue.group.enable": "true"})
    configs = {
        "share.auto.offset.reset": f"by_duration:PT{ago_s}S",
        "errors.deadletterqueue.topic.name": "dlq.letters",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    client = admin(broker)
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in configs.items()]
    resource = ConfigResource(ResourceType.GROUP, "late", incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    own = {"share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "late", **own})
    consumer.subscribe([TOPIC])
    got: list[Any] = []
    until(lambda: got.extend(each for each in consumer.poll(0.2) if each.error() is None) or got)
    assert 280 < int(got[0].key()) < 600
    for each in got:
        consumer.acknowledge(each, AcknowledgeType.REJECT)
    consumer.commit_sync()
    consumer.close()
    letters = broker.topics["dlq.letters"]
    until(lambda: len(letters.records()) == len(got))
    assert [(each.key, each.value) for each in letters.records()] == [(each.key(), each.value()) for each in got]


def test_a_share_group_gets_a_record_that_is_larger_than_the_cache(tmp_path: Path) -> None:
    own = {**settings(tmp_path / "store"), "remote.storage.cache.bytes": str(16 << 20), "message.max.bytes": "30000000"}
    with Broker(own, data_dir=str(tmp_path / "data")) as broker:
        create(broker, local_retention_bytes="0", internal_segment_bytes="30000000")
        client = admin(broker)
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 30_000_000})
        producer.produce(TOPIC, random.Random(1).randbytes(22 << 20), b"large")
        assert producer.flush(PATIENCE_S) == 0
        alter(broker, internal_segment_bytes="20000")
        produce(broker, 0, 100)
        until(lambda: offset(broker, LOCAL) > 0)
        consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "workers"})
        consumer.subscribe([TOPIC])
        seen: list[Any] = []
        until(lambda: seen.extend(each for each in consumer.poll(0.2) if each.error() is None) or seen)
        consumer.close()
        assert (seen[0].key(), len(seen[0].value())) == (b"large", 22 << 20)

"""Tiered storage beside Apache Kafka 4.4.0: configs, their errors, offsets and records of a topic in two tiers.

Kafka publishes no remote storage that keeps data, so FileTier.java is its storage here.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.cli.conftest import CommandLine
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="a second broker: only with KBROKER_TESTS=long"),
]
PATIENCE_S = 60.0
ON = {"remote.storage.enable": "true"}
CREATIONS: list[dict[str, str]] = [
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact,delete"},
    {"local.retention.ms": "1000", "retention.ms": "500"},
    {"local.retention.ms": "-1", "retention.ms": "500"},
    {"local.retention.bytes": "1000", "retention.bytes": "500"},
    {"local.retention.bytes": "-1", "retention.bytes": "500"},
    {"remote.copy.lag.ms": "1000", "local.retention.ms": "500"},
    {"remote.copy.lag.ms": "-1"},
    {"remote.copy.lag.bytes": "1000", "local.retention.bytes": "500"},
    {"remote.log.copy.disable": "true"},
    {"remote.log.copy.disable": "true", "local.retention.ms": "1000"},
    {"remote.log.copy.disable": "true", "local.retention.bytes": "1000"},
    {"message.timestamp.type": "LogAppendTime"},
]
CHANGES: list[dict[str, str]] = [
    {"remote.storage.enable": "false"},
    {"cleanup.policy": "compact"},
    {"remote.log.copy.disable": "true"},
    {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"},
    {"remote.storage.enable": "true"},
]
SPECIAL = (-1, -2, -3, -4, -5, -6, 0, 1_000_050_000, 1_000_100_000)
COMMON = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
}


def kafka(libs: Path, directory: Path) -> ApacheKafka:
    """Return Apache Kafka with FileTier as its remote storage."""
    classes, jars = directory / "classes", directory / "libs"
    shutil.copytree(libs, jars)
    source = Path(__file__).with_name("FileTier.java")
    subprocess.run(["javac", "-cp", f"{libs}/*", "-d", str(classes), str(source)], check=True, timeout=PATIENCE_S)
    subprocess.run(["jar", "cf", str(jars / "filetier.jar"), "-C", str(classes), "."], check=True, timeout=PATIENCE_S)
    settings = {
        **COMMON,
        "remote.log.storage.manager.class.name": "FileTier",
        "rsm.config.dir": str(directory / "store"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
    }
    return ApacheKafka(jars, directory / "broker", settings)


def kbroker(directory: Path) -> KBroker:
    (directory / "store").mkdir(parents=True)
    return KBroker(directory / "broker", {**COMMON, "remote.storage.url": f"file://{directory / 'store'}"})


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except KafkaException as error:
        return f"{error.args[0].name()}: {error.args[0].str()}"
    return "done"


def offsets(bootstrap: str) -> dict[int, tuple[int, int, int]]:
    """Return (error code, offset, leader epoch) for each special timestamp."""
    client, found = WireClient(bootstrap), {}
    for each in SPECIAL:
        wanted = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, each)])
        answer = client.ask(ListOffsetsRequest(-1, 0, [wanted], timeout_ms=5000), 11).topics[0].partitions[0]
        found[each] = answer.error_code, answer.offset, answer.leader_epoch
    client.close()
    return found


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def observed(broker: BrokerProcess) -> dict[str, Any]:
    """Return what clients see of topics with remote storage."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(name: str, configs: dict[str, str]) -> str:
        topic = NewTopic(name, 1, 1, config={**ON, **configs})
        return outcome(lambda: admin.create_topics([topic])[name].result(PATIENCE_S))

    def alter(configs: dict[str, str]) -> str:
        entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in configs.items()]
        resource = ConfigResource("topic", "t", incremental_configs=entries)
        return outcome(lambda: admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S))

    seen: dict[str, Any] = {f"create {each}": create(f"c{n}", each) for n, each in enumerate(CREATIONS)}
    assert create("t", {"segment.bytes": "1048576", "local.retention.ms": "1000", "retention.ms": "-1"}) == "done"
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 50_000, "linger.ms": 5})
    for number in range(5000):
        producer.produce("t", b"x" * 1000, b"%d" % number, timestamp=1_000_000_000 + number * 100)
    assert producer.flush(PATIENCE_S) == 0
    until(lambda: offsets(broker.bootstrap)[-4][1] == 5000)
    seen["offsets"] = offsets(broker.bootstrap)
    (tiers,) = CommandLine(broker.bootstrap).ok("topic", "tiers", "t", "--json").json
    sizes = [tiers.pop(each) for each in ("local_bytes", "remote_bytes", "remote_segments")]  # the batches differ
    assert sizes[0] < 1 << 20 < sizes[1]
    seen["tiers"] = tiers
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "a", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("t", 0, 0)])
    read: list[tuple[int, bytes | None, int]] = []
    while len(read) < 5000:
        messages = consumer.consume(1000, PATIENCE_S)
        assert messages
        read += [(each.offset(), each.key(), each.timestamp()[1]) for each in messages if each.error() is None]
    consumer.close()
    seen["read"] = hash(tuple(read)), len(read)
    (deleted,) = admin.delete_records([TopicPartition("t", 0, 2500)]).values()
    seen["low watermark"] = deleted.result(PATIENCE_S).low_watermark
    until(lambda: offsets(broker.bootstrap)[-2][1] == 2500)
    seen["after a deletion"] = offsets(broker.bootstrap)
    for each in CHANGES:
        seen[f"alter {each}"] = alter(each)
    return seen


def test_as_apache_kafka(kafka_libs: Path, tmp_path: Path) -> None:
    with kbroker(tmp_path / "kbroker") as ours:
        mine = observed(ours)
    with kafka(kafka_libs, tmp_path / "kafka") as theirs:
        expected = observed(theirs)
    assert mine == expected

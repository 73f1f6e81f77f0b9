"""A data directory with a share group and a streams group goes from Kafka 4.4.0 to kbroker and back; each continues.

Owns the three stages. Each broker reads what the other wrote into `__share_group_state` and `__consumer_offsets`: which
records are done, how often the other records were delivered, the topology and the committed offsets of an application.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from compat_tests.harness.brokers import ApacheKafka, KBroker
from compat_tests.harness.parts import fetch
from compat_tests.streams.app import Application, Input, Output, create_topics
from compat_tests.streams.scenarios import described, wait_for_members
from compat_tests.wire.client import WireClient
from kbroker.controller.adopt import adopt
from kbroker.log import checkpoints
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="starts Apache Kafka twice: only with KBROKER_TESTS=long"),
]

GROUP, TOPIC, RECORDS, WAIT_S = "workers", "jobs", 12, 60
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
Told = list[tuple[int, str, int]]


def configure(bootstrap: str) -> None:
    """Make the group begin at the first record. This config belongs to the broker's metadata, not to the logs."""
    change = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([group])[group].result(WAIT_S)


def send(bootstrap: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 500})
    for number in range(first, first + count):
        producer.produce(TOPIC, f"job {number}")
    assert producer.flush(WAIT_S) == 0


def work(bootstrap: str, count: int, how: Mapping[int, AcknowledgeType]) -> Told:
    """Take `count` records, and acknowledge those at the offsets of `how`; the others are given back at the end."""
    settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "share.acknowledgement.mode": "explicit"}
    consumer = ShareConsumer(settings)
    consumer.subscribe([TOPIC])
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            got = [each for each in consumer.poll(1) if each.error() is None]
            found += got
            for message in got:
                consumer.acknowledge(message, how.get(message.offset() or 0, RELEASE))
            consumer.commit_sync(30)
    finally:
        consumer.close()
    return [(each.offset() or 0, (each.value() or b"").decode(), each.delivery_count() or 0) for each in found]


def start_and_lag(bootstrap: str) -> tuple[int, int]:
    topic = DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[0])
    group = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[topic])
    deadline = time.monotonic() + WAIT_S
    with WireClient(bootstrap) as client:
        while True:  # the coordinators may still be loading
            (answer,) = client.ask(DescribeShareGroupOffsetsRequest(groups=[group]), 1).groups
            found = [partition for topic in answer.topics for partition in topic.partitions]
            if answer.error_code == 0 and found and found[0].error_code == 0:
                return found[0].start_offset, found[0].lag
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)


def hand_over(source: Path, target: Path) -> None:
    """Replace the logs and checkpoints that kbroker once adopted from Kafka by those of the stopped kbroker."""
    for directory in source.glob("*-*/"):
        if not directory.name.startswith("__cluster_metadata"):
            shutil.rmtree(target / directory.name, ignore_errors=True)
            shutil.copytree(directory, target / directory.name)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS):
        theirs = checkpoints.read_offsets(str(target / name)) if (target / name).exists() else {}
        checkpoints.write_offsets(str(target / name), {**theirs, **checkpoints.read_offsets(str(source / name))})


def pass_over_producer_ids(bootstrap: str) -> None:
    """Make Kafka allocate the next thousand producer ids: it does not know which of them kbroker has allocated."""
    deadline = time.monotonic() + WAIT_S
    with WireClient(bootstrap) as client:
        while client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4).error_code:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_share_group_continues_where_the_other_broker_ended(tmp_path: Path) -> None:
    kafka, ours = ApacheKafka(fetch("kafka"), tmp_path / "kafka"), KBroker(tmp_path / "kbroker")
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(WAIT_S)
        configure(kafka.bootstrap)
        send(kafka.bootstrap, 0, RECORDS)
        kinds = (ACCEPT, RELEASE, REJECT)
        told = work(kafka.bootstrap, RECORDS, {offset: kinds[offset % 3] for offset in range(RECORDS)})
        assert told == [(offset, f"job {offset}", 1) for offset in range(RECORDS)]
        left = start_and_lag(kafka.bootstrap)
    shutil.copytree(kafka.data_dir, ours.data_dir)
    adopt(str(ours.data_dir), {})
    with ours:
        assert start_and_lag(ours.bootstrap) == left
        configure(ours.bootstrap)
        send(ours.bootstrap, RECORDS, 2)
        told = work(ours.bootstrap, 6, {1: ACCEPT, 4: REJECT, 12: ACCEPT})
        assert sorted(told) == [(o, f"job {o}", 2 if o < RECORDS else 1) for o in (1, 4, 7, 10, 12, 13)]
        left = start_and_lag(ours.bootstrap)
    hand_over(ours.data_dir, kafka.data_dir)
    with kafka:
        assert start_and_lag(kafka.bootstrap) == left
        told = work(kafka.bootstrap, 3, dict.fromkeys((7, 10, 13), ACCEPT))
        assert sorted(told) == [(7, "job 7", 3), (10, "job 10", 3), (13, "job 13", 2)]
        assert start_and_lag(kafka.bootstrap)[1] == 0


def test_an_application_continues_on_the_other_broker(tmp_path: Path) -> None:
    kafka, ours = ApacheKafka(fetch("kafka"), tmp_path / "kafka"), KBroker(tmp_path / "kbroker")
    unique = "handed"
    seen: list[object] = []

    def count(bootstrap: str, lines: int) -> None:
        """Count some more lines; the counts result from all lines of all stages."""
        source.go_to(bootstrap)
        output = Output(bootstrap, unique)
        application = Application(bootstrap, unique, tmp_path / "state", "streams")
        if seen:
            wait_for_members(bootstrap, unique, 0)
        with application:
            source.send(lines)
            output.wait_for(source.counts, application, WAIT_S)
            seen.append(described(bootstrap, unique))
        output.close()

    with kafka:
        create_topics(kafka.bootstrap, unique)
        source = Input(kafka.bootstrap, unique, 20261128)
        count(kafka.bootstrap, 100)
    shutil.copytree(kafka.data_dir, ours.data_dir)
    adopt(str(ours.data_dir), {})
    with ours:
        count(ours.bootstrap, 60)
    with kafka:
        pass_over_producer_ids(kafka.bootstrap)
    hand_over(ours.data_dir, kafka.data_dir)
    with kafka:
        count(kafka.bootstrap, 40)
    assert seen[0] == seen[1] == seen[2]

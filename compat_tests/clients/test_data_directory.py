"""Kafka's dump tool reads the data directory of a broker that real clients have used: every file, with no complaint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from compat_tests.clients.common import CODECS, WAIT_S, bulk
from compat_tests.clients.confluent.tools import admin, answers, consumer, create, fill, producer, take
from compat_tests.harness.brokers import KBroker
from compat_tests.harness.jvm import dump_log_segments

pytestmark = pytest.mark.java

RECORDS = 3000
TROUBLE = re.compile(
    r"mismatch|exception|error|corrupt|invalid|isvalid: false|non-consecutive|not found", re.IGNORECASE
)


def use(bootstrap: str) -> None:
    """Write data of every kind: codecs, several segments, idempotent producers, deleted records, groups."""
    for codec in CODECS:
        topic = create(bootstrap, f"used-{codec}", segment_bytes="1048576")
        values = list(bulk(RECORDS, 1000))
        for partition_epoch in range(2):
            half = values[partition_epoch::2]
            fill(bootstrap, topic, half, compression_type=codec, enable_idempotence=True, linger_ms=5)
    client = admin(bootstrap)
    answers(client.delete_records([TopicPartition("used-none", 0, 1200)]))
    compacted = create(bootstrap, "used-compacted", cleanup_policy="compact")
    with producer(bootstrap) as sender:
        for number in range(RECORDS):
            sender.produce(compacted, b"v%d" % number, key=b"k%d" % (number % 10), headers=[("n", b"%d" % number)])
    for number in range(3):
        with consumer(bootstrap, f"group-{number}") as reader:
            reader.subscribe(["used-none"])
            take(reader, 10)
            reader.commit(asynchronous=False)
    moved = ConsumerGroupTopicPartitions("group-0", [TopicPartition("used-none", 0, 2600)])
    answers(client.alter_consumer_group_offsets([moved]))
    client.delete_consumer_groups(["group-1"])["group-1"].result(WAIT_S)


def test_dump_log_segments_reads_every_file(kafka_libs: Path, tmp_path: Path) -> None:
    broker = KBroker(tmp_path / "broker")
    with broker:
        use(broker.bootstrap)
    logs = sorted(broker.data_dir.glob("*/*.log"))
    ordinary = [log for log in logs if not log.parent.name.startswith("__")]
    assert len([log for log in logs if log.parent.name == "used-zstd-0"]) == 1
    assert len([log for log in logs if log.parent.name == "used-none-0"]) > 1

    text = dump_log_segments(kafka_libs, ordinary, "--deep-iteration", "--print-data-log")
    assert not TROUBLE.search(text.replace("isvalid: true", "")), TROUBLE.findall(text)
    # Deleting records removes only complete segments; everything else is still in the log.
    assert text.count("| offset: ") > (len(CODECS) - 1) * RECORDS + RECORDS // 2

    offsets = [log for log in logs if log.parent.name.startswith("__consumer_offsets")]
    text = dump_log_segments(kafka_libs, offsets, "--deep-iteration", "--offsets-decoder")
    assert not TROUBLE.search(text.replace("isvalid: true", "")), TROUBLE.findall(text)
    for group in range(3):
        assert f"group-{group}" in text

    indexes = [*broker.data_dir.glob("*/*.index"), *broker.data_dir.glob("*/*.timeindex")]
    text = dump_log_segments(kafka_libs, indexes, "--deep-iteration")
    assert not TROUBLE.search(text), TROUBLE.findall(text)
    text = dump_log_segments(kafka_libs, indexes, "--index-sanity-check")
    assert text.count("passed sanity check") + text.count("is empty") == len(indexes)

    others = [*broker.data_dir.glob("*/*.snapshot"), *broker.data_dir.glob("*/*.txnindex")]
    text = dump_log_segments(kafka_libs, others)
    assert not TROUBLE.search(text), TROUBLE.findall(text)
    assert text.count("producerId: ") >= len(CODECS)

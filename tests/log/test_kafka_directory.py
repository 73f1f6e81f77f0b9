"""One partition's directory is used by Apache Kafka, then by kbroker's log, and then by Apache Kafka again."""

from __future__ import annotations

import shutil
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from compat_tests.harness.brokers import ApacheKafka
from kbroker.log.files import HEADERS_SUFFIX
from kbroker.log.header_indexing import ensure
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.protocol.records import build_batch
from tests.log.builders import NOW, committed, largest, read_all

pytestmark = pytest.mark.java

TOPIC = "handed-over"
COUNT = 300


def write_with_kafka(bootstrap: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    settings = {"segment.bytes": str(1 << 20), "index.interval.bytes": "1000"}
    topic = confluent_kafka.admin.NewTopic(TOPIC, 1, 1, config=settings)
    for future in admin.create_topics([topic]).values():
        future.result(30)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "transactional.id": codec, "linger.ms": 1}
        )
        producer.init_transactions(30)
        for abort in (True, False):
            producer.begin_transaction()
            for index in range(COUNT):
                value = f"{'aborted' if abort else codec}-{index}-".encode() + bytes(
                    i * index % 251 for i in range(500)
                )
                producer.produce(TOPIC, value, key=str(index), headers={"h": b"v"})
                if index % 20 == 0:
                    producer.flush(30)
            producer.flush(30)
            (producer.abort_transaction if abort else producer.commit_transaction)(30)


def consume(bootstrap: str, isolation: str, end: int) -> list[tuple[int, bytes]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": isolation, "enable.auto.commit": False,
         "enable.partition.eof": True, "check.crcs": True}
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            assert message.offset() == end
            consumer.close()
            return found
        found.append((message.offset(), message.value()))


def opened(directory: Path, *, clean: bool) -> PartitionLog:
    return committed(PartitionLog(str(directory), TOPIC, 0, LogConfig(), now_ms=NOW, stop=LastStop(clean=clean)))


def test_a_directory_is_handed_over_and_back(tmp_path: Path, kafka_libs: Path) -> None:
    kafka = ApacheKafka(kafka_libs, tmp_path / "apache")
    directory = kafka.data_dir / f"{TOPIC}-0"
    kafka.start()
    try:
        write_with_kafka(kafka.bootstrap)
        end = 5 * (2 * COUNT + 2)
        seen = consume(kafka.bootstrap, "read_uncommitted", end)
        assert len(seen) == 10 * COUNT
    finally:
        kafka.stop()

    offsets = {offset for offset, _ in seen}
    shutil.copytree(directory, tmp_path / "copy")
    answers = []
    for clean in (True, False):
        log = opened(tmp_path / "copy", clean=clean)
        records = [(record.offset, record.value) for record in read_all(log) if record.offset in offsets]
        assert records == seen
        aborted = log.aborted_transactions(0, end)
        assert [first for _, first in aborted] == [turn * 2 * (COUNT + 1) for turn in range(5)]
        answers.append((aborted, largest(log), log.leader_epochs.entries, log.last_stable_offset))
        assert len(log.active_producers()) == 5
    assert answers[0] == answers[1]

    log = opened(directory, clean=True)
    for index in range(50):
        records = [(largest(log)[1] + 1, b"ours", str(index).encode(), ())]  # type: ignore[index]
        log.append_as_leader(build_batch(records, codec=index % 5), log.leader_epochs.latest, NOW * 2)
    log.roll(NOW)
    first = log.segments[0]
    index = Path(first.path(HEADERS_SUFFIX))
    ensure(first.path(), str(index), first.base_offset, first.size, ["h"], lambda: False)
    log.close()
    kafka.start()
    try:
        again = consume(kafka.bootstrap, "read_uncommitted", end + 50)
        assert again == seen + [(end + index, str(index).encode()) for index in range(50)]
        committed_only = consume(kafka.bootstrap, "read_committed", end + 50)
        assert len(committed_only) == 5 * COUNT + 50
        assert not [value for _, value in committed_only if value.startswith(b"aborted")]
        assert index.exists(), "Kafka passes over a file that it does not know"
    finally:
        kafka.stop()

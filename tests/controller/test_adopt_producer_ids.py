"""No producer id in an adopted directory is allocated again, wherever the directory contains it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from compat_tests.harness.brokers import ApacheKafka
from kbroker import Broker
from kbroker.controller.adopt import adopt, first_unused_producer_id
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.coordination.encoding import record_batch
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.protocol.records import build_batch
from kbroker.txn.records import transaction_record, transaction_tombstone
from kbroker.txn.transaction import Transaction
from tests.log.builders import NOW, batch
from tests.txn.raw import Raw

CLUSTER = "5L6g3nShT-eMCtK--X86sw"


def write(directory: Path, topic: str, *batches: bytes) -> None:
    logs = LogDirectory(str(directory), node_id=3, cluster_id=CLUSTER)
    logs.load(lambda _topic: LogConfig(), NOW)
    log = logs.get_or_create(topic, 0, uuid.uuid5(uuid.NAMESPACE_OID, topic), LogConfig())
    for each in batches:
        log.append_as_leader(bytearray(each), 0, NOW)
    logs.close()


def next_id(directory: Path) -> int:
    store = EmbeddedStore(str(directory))
    try:
        return Controller(store, CLUSTER, TopicDefaults(1, 1, {})).allocate_producer_ids(1)
    finally:
        store.close()


def produced(producer_id: int) -> bytes:
    return batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=0)


def metadata(*next_ids: int) -> bytes:
    """Return records as Kafka's controller writes them: a ProducerIdsRecord for each id, and one of another type."""
    rows = [(NOW, None, bytes((1, 15, 0)) + bytes(12) + each.to_bytes(8, "big") + b"\0", ()) for each in next_ids]
    return build_batch([*rows, (NOW, None, bytes((1, 12, 0)) + b"\xff" * 20, ()), (NOW, None, b"\x01", ())])


def test_t16_producers_of_the_logs(tmp_path: Path) -> None:
    write(tmp_path, "orders", produced(70), produced(12), produced(2**63 - 1))
    assert first_unused_producer_id(str(tmp_path)) == 71
    (snapshot,) = (tmp_path / "orders-0").glob("*.snapshot")
    adopt(str(tmp_path), {})
    assert next_id(tmp_path) == 71
    snapshot.write_bytes(b"broken")
    assert first_unused_producer_id(str(tmp_path)) == 71, "the log itself names it"


def test_t16_ids_that_only_transactional_ids_have(tmp_path: Path) -> None:
    """Ids that are a transactional id's current, previous or next producer id; also if it was forgotten since."""
    for used in (400, 90, 700):
        txn = Transaction("id", 3, 0, prev_producer_id=used, next_producer_id=5)
        records = [transaction_record(txn, 2), transaction_tombstone("id")]
        directory = tmp_path / str(used)
        write(directory, "__transaction_state", record_batch(records, 0, None, NOW))
        write(directory, "orders", produced(80))
        adopt(str(directory), {})
        assert next_id(directory) == max(used, 80) + 1


def test_t16_what_kafkas_metadata_say(tmp_path: Path) -> None:
    """Producer ids are found in Kafka's metadata even if no other file has them."""
    write(tmp_path, "orders", produced(80))
    kraft = tmp_path / "__cluster_metadata-0"
    kraft.mkdir()
    (kraft / f"{0:020}.log").write_bytes(metadata(1000, 2000))
    assert first_unused_producer_id(str(tmp_path)) == 2000
    (kraft / f"{9:020}-0000000001.checkpoint").write_bytes(metadata(5000))
    assert first_unused_producer_id(str(tmp_path)) == 5000
    adopt(str(tmp_path), {})
    assert next_id(tmp_path) == 5000


def test_ids_are_skipped_only_upwards(tmp_path: Path) -> None:
    write(tmp_path, "orders", produced(80))
    adopt(str(tmp_path), {})
    assert [next_id(tmp_path), next_id(tmp_path)] == [81, 82]
    adopt(str(tmp_path), {})
    assert next_id(tmp_path) == 83


def test_garbage_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, "__transaction_state", build_batch([(NOW, b"key", b"\0\1garbage", ()), (NOW, b"key", b"\0", ())]))
    kraft = tmp_path / "__cluster_metadata-0"
    kraft.mkdir()
    (kraft / f"{0:020}.log").write_bytes(b"garbage" * 30)
    assert first_unused_producer_id(str(tmp_path)) == 0


@pytest.mark.java
def test_t16_ids_that_apache_kafka_gave(kafka_libs: Path, tmp_path: Path) -> None:
    """Ids that Kafka allocated to producers which never wrote a record."""
    kafka = ApacheKafka(kafka_libs, tmp_path)
    try:
        kafka.start()
        client = Raw(kafka.bootstrap)
        given = [client.init(f"id-{n}").producer_id for n in range(3)]
        client.close()
        assert kafka.stop() in (0, 143)
    finally:
        kafka.stop()
    assert given[0] == 0
    assert first_unused_producer_id(str(kafka.data_dir)) == 1000, "Kafka's blocks have 1000 ids"
    adopt(str(kafka.data_dir), {})
    with Broker(data_dir=str(kafka.data_dir)) as broker:
        client = Raw(broker.bootstrap_servers)
        assert client.init("another").producer_id == 1000
        assert client.init("id-1").producer_id == given[1], "who was there is known"
        client.close()

"""Tiered storage on a running broker: consumers, offsets, deletions and configs beside what a log on one disk has."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from compat_tests.wire.client import WireClient
from kbroker import Acl, Broker, Cluster
from kbroker.config.model import ConfigError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.records import iter_batches
from tests.cli.conftest import CommandLine
from tests.metrics.conftest import watched
from tests.tries import FORM

PATIENCE_S = 30.0
TOPIC = "events"
TIERED = {"remote.storage.enable": "true", "internal.segment.bytes": "20000", "local.retention.bytes": "30000"}
LATEST, EARLIEST, MAX_TIMESTAMP, LOCAL, TIERED_TO, PENDING = -1, -2, -3, -4, -5, -6
BEGAN_MS = int(time.time() * 1000) - 100_000


def settings(store: Path) -> dict[str, str]:
    store.mkdir(exist_ok=True)
    return {
        "remote.log.storage.system.enable": "true",
        "remote.storage.url": f"file://{store}",
        "remote.log.manager.task.interval.ms": "50",
        "log.initial.task.delay.ms": "50",
        "log.retention.check.interval.ms": "100",
        "log.segment.delete.delay.ms": "50",
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data")) as made:
        yield made


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def admin(broker: Broker | Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(broker: Broker | Cluster, name: str = TOPIC, **configs: str) -> None:
    own = {key.replace("_", "."): value for key, value in configs.items()}
    client = admin(broker)
    client.create_topics([NewTopic(name, 1, 1, config={**TIERED, **own})])[name].result(PATIENCE_S)


def alter(broker: Broker | Cluster, name: str = TOPIC, **configs: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    resource = ConfigResource("topic", name, incremental_configs=entries)
    client = admin(broker)
    client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


def produce(broker: Broker | Cluster, begin: int, count: int, **more: Any) -> None:
    """Produce numbered records of 240 bytes that no codec makes smaller, ten in a second by their timestamps."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 6_000, "linger.ms": 2, **more})
    if "transactional.id" in more:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
    for number in range(begin, begin + count):
        value = random.Random(number).randbytes(240)
        producer.produce(TOPIC, value, b"%d" % number, timestamp=BEGAN_MS + number // 10 * 1000)
    assert producer.flush(PATIENCE_S) == 0
    if "transactional.id" in more:
        end = producer.abort_transaction if more["transactional.id"] == "aborted" else producer.commit_transaction
        end(PATIENCE_S)


def offset_at(broker: Broker | Cluster, timestamp: int) -> tuple[int, int]:
    """Return (error code, offset) of a ListOffsets at the partition's leader."""
    wanted = ListOffsetsTopic(TOPIC, [ListOffsetsPartition(0, -1, timestamp)])
    for address in broker.bootstrap_servers.split(","):
        client = WireClient(address)
        answer = client.ask(ListOffsetsRequest(-1, 0, [wanted], timeout_ms=5000), 11).topics[0].partitions[0]
        client.close()
        if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            break
    return answer.error_code, answer.offset


def offset(broker: Broker | Cluster, timestamp: int) -> int:
    code, found = offset_at(broker, timestamp)
    assert code == ErrorCode.NONE, ErrorCode(code)
    return found


def records(broker: Broker | Cluster, end: int, begin: int = 0, **more: Any) -> list[tuple[int, bytes, bytes, int]]:
    """Return (offset, key, value, timestamp) of all records up to an offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "a",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **more,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, begin)])
    found = []
    stop = time.monotonic() + PATIENCE_S
    while time.monotonic() < stop:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            break
        found.append((message.offset(), message.key() or b"", message.value() or b"", message.timestamp()[1]))
    assert consumer.position([TopicPartition(TOPIC, 0)])[0].offset == end
    consumer.close()
    return found


def tiered(broker: Broker | Cluster) -> None:
    """Wait until all closed segments are copied, and the disk has only what it may keep."""

    def is_done() -> bool:
        code, copied_to = offset_at(broker, TIERED_TO)
        local, end = offset(broker, LOCAL), offset(broker, LATEST)
        return not code and 0 < local <= copied_to + 1 and end - copied_to < 150 and end - local < 300

    until(is_done)


def files(store: Path) -> list[str]:
    return [name for folder, _, names in os.walk(store) if "/broker-state" not in folder for name in names]


@pytest.mark.parametrize("codec", ["none", "zstd"] if FORM == "long" else ["zstd"])
def test_consumers_read_both_tiers_as_one_log(broker: Broker | Cluster, codec: str) -> None:
    create(broker)
    more: dict[str, Any] = {"compression.type": codec}
    alter(broker, remote_copy_lag_ms="3600000", local_retention_bytes="-2")  # nothing is copied at first
    produce(broker, 0, 300, **more)
    produce(broker, 300, 100, **{"transactional.id": "aborted", **more})
    produce(broker, 400, 300, **{"transactional.id": "committed", **more})
    produce(broker, 700, 100, **{"transactional.id": "aborted", **more})
    produce(broker, 800, 200, **more)
    end = offset(broker, LATEST)
    modes = ("read_uncommitted", "read_committed")
    until(lambda: offset_at(broker, TIERED_TO)[0] == ErrorCode.NONE)  # the topic of the records about segments is new
    before = [records(broker, end, **{"isolation.level": mode}) for mode in modes]
    times = [(step, offset(broker, BEGAN_MS + step * 1000 - 500)) for step in range(0, 102, 7)]
    assert [len(each) for each in before] == [1000, 800]
    alter(broker, remote_copy_lag_ms="0", local_retention_bytes="30000")
    tiered(broker)
    assert offset(broker, EARLIEST) == 0
    assert [records(broker, end, **{"isolation.level": mode}) for mode in modes] == before
    assert [(step, offset(broker, BEGAN_MS + step * 1000 - 500)) for step, _ in times] == times
    small = {"fetch.message.max.bytes": 1}
    assert records(broker, end, **{"isolation.level": "read_committed", **small}) == before[1]
    assert records(broker, end, 333, **{"isolation.level": "read_committed"}) == [e for e in before[1] if e[0] >= 333]


def test_all_is_there_after_a_restart(tmp_path: Path) -> None:
    with Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data")) as broker:
        create(broker)
        produce(broker, 0, 1000)
        tiered(broker)
        before = records(broker, 1000)
    with Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data")) as broker:
        assert records(broker, 1000) == before
        until(lambda: offset_at(broker, TIERED_TO)[0] == ErrorCode.NONE)
        assert offset(broker, BEGAN_MS + 50_000) == 500
        produce(broker, 1000, 500)
        tiered(broker)
        assert len(records(broker, 1500)) == 1500
    text = "remote.log.storage.system.enable=false, but topics such as events use remote storage"
    with pytest.raises(ConfigError, match=text):
        Broker(data_dir=str(tmp_path / "data")).start()


def test_the_rate_of_copies_changes_while_the_broker_runs(tmp_path: Path) -> None:
    key = "remote.log.manager.copy.max.bytes.per.second"
    with Broker({**settings(tmp_path / "store"), key: "1"}, data_dir=str(tmp_path / "data")) as broker:
        create(broker)
        produce(broker, 0, 1000)
        until(lambda: files(tmp_path / "store"))
        assert offset(broker, LOCAL) == 0
        entry = ConfigEntry(key, "1000000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("broker", "1", incremental_configs=[entry])
        client = admin(broker)
        client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        tiered(broker)


def test_deletions_of_records_and_of_the_topic(broker: Broker | Cluster, tmp_path: Path) -> None:
    store = tmp_path / "store"
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    count = len(files(store))
    client = admin(broker)
    (deleted,) = client.delete_records([TopicPartition(TOPIC, 0, 555)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 555
    assert offset(broker, EARLIEST) == 555
    assert [each[0] for each in records(broker, 1000, 555)] == list(range(555, 1000))
    with pytest.raises(AssertionError, match="Offset out of range"):
        records(broker, 1000, 554)
    until(lambda: len(files(store)) < count * 2 // 3)
    assert [each[0] for each in records(broker, 1000, 555)] == list(range(555, 1000))
    client = admin(broker)
    client.delete_topics([TOPIC])[TOPIC].result(PATIENCE_S)
    until(lambda: not files(store))


@pytest.mark.parametrize("limit", ["bytes", "ms"])
def test_retention_counts_both_tiers(broker: Broker | Cluster, tmp_path: Path, limit: str) -> None:
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    assert offset(broker, EARLIEST) == 0
    if limit == "bytes":
        alter(broker, retention_bytes="100000")
    else:
        half_ms = int(time.time() * 1000) - BEGAN_MS - 50_000
        alter(broker, retention_ms=str(half_ms), local_retention_ms="1")
    until(lambda: offset(broker, EARLIEST) > 300)
    begin = offset(broker, EARLIEST)
    assert begin < 1000
    assert begin <= offset(broker, LOCAL)
    found = [each[0] for each in records(broker, 1000, begin, **{"auto.offset.reset": "earliest"})]
    assert found == list(range(found[0], 1000))


def test_switched_off_the_remote_records_are_deleted(broker: Broker | Cluster, tmp_path: Path) -> None:
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    with pytest.raises(KafkaException, match="It is invalid to disable remote storage without deleting remote data"):
        alter(broker, remote_storage_enable="false")
    alter(broker, remote_storage_enable="false", remote_log_delete_on_disable="true")
    until(lambda: not files(tmp_path / "store"))
    begin = offset(broker, EARLIEST)
    assert begin == offset(broker, LOCAL) > 500
    assert [each[0] for each in records(broker, 1000, begin)] == list(range(begin, 1000))
    alter(broker, remote_storage_enable="true")
    tiered(broker)
    assert offset(broker, EARLIEST) == begin
    produce(broker, 1000, 500)
    tiered(broker)
    assert offset(broker, EARLIEST) == begin
    assert [each[0] for each in records(broker, 1500, begin)] == list(range(begin, 1500)), "what is copied now counts"


def test_a_store_that_fails_loses_nothing(
    broker: Broker | Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    create(broker)
    produce(broker, 0, 500)
    tiered(broker)
    store.rename(tmp_path / "elsewhere")
    store.write_text("no directory")
    produce(broker, 500, 500)
    until(lambda: "events-0: remote storage fails, and is tried again" in caplog.text)
    copied = offset(broker, TIERED_TO)  # a copy that had begun before may have ended in the renamed directory
    produce(broker, 1000, 500)
    assert offset(broker, TIERED_TO) == copied
    assert [each[0] for each in records(broker, 1500, copied + 1)] == list(range(copied + 1, 1500)), "it stays here"
    store.unlink()
    (tmp_path / "elsewhere").rename(store)
    tiered(broker)
    assert [each[0] for each in records(broker, 1500)] == list(range(1500))


def test_leader_epochs_that_are_lost_come_back_from_the_remote_segments(tmp_path: Path) -> None:
    with Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data")) as broker:
        create(broker)
        produce(broker, 0, 1000)
        tiered(broker)
    (tmp_path / "data" / f"{TOPIC}-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    with Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data")) as broker:
        tiered(broker)
        assert [each[0] for each in records(broker, 1000)] == list(range(1000))


def test_nobody_deletes_the_records_that_name_the_segments(broker: Broker | Cluster) -> None:
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    topic = "__remote_log_metadata"
    for configs in ({"retention_ms": "1000"}, {"cleanup_policy": "compact"}, {"remote_storage_enable": "true"}):
        with pytest.raises(KafkaException, match=r"INVALID_CONFIG|cannot"):
            alter(broker, topic, **configs)
    client = admin(broker)
    (deleted,) = client.delete_records([TopicPartition(topic, 0, -1)]).values()
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        deleted.result(PATIENCE_S)
    (grown,) = client.create_partitions([NewPartitions(topic, 60)]).values()
    (dropped,) = client.delete_topics([topic]).values()
    for refused in (grown, dropped):
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            refused.result(PATIENCE_S)
    assert [each[0] for each in records(broker, 1000)] == list(range(1000))


def test_a_client_creates_the_topic_of_the_segments_only_so_that_it_keeps_them(broker: Broker | Cluster) -> None:
    client = admin(broker)
    topic = "__remote_log_metadata"
    with pytest.raises(KafkaException, match=r"needs cleanup\.policy=delete: it names all segments"):
        client.create_topics([NewTopic(topic, 4, 1)])[topic].result(PATIENCE_S)
    kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    client.create_topics([NewTopic(topic, 4, 1, config=kept)])[topic].result(PATIENCE_S)
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)


def test_a_lost_object_is_an_error_and_holds_nobody_up(
    broker: Broker | Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store"
    create(broker)
    produce(broker, 0, 1000)
    tiered(broker)
    lost = sorted(each for each in store.glob("*/*/*") if each.is_file() and "broker-state" not in each.parts)[3]
    begin = int(lost.name[:20])
    lost.unlink()
    client = WireClient(broker.bootstrap_servers)
    answer = client.ask(fetch_request(begin), 12).responses[0].partitions[0]
    assert (answer.error_code, answer.records or b"") == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert client.ask(fetch_request(begin), 12).responses[0].partitions[0].error_code == answer.error_code
    text = f"{TOPIC}-0 cannot be read from remote storage at offset {begin}: "
    assert len([each for each in caplog.messages if each.startswith(text)]) == 1
    assert client.ask(fetch_request(0), 12).responses[0].partitions[0].error_code == ErrorCode.NONE
    client.close()
    begin = offset(broker, LOCAL)
    assert [each[0] for each in records(broker, 1000, begin)] == list(range(begin, 1000))


def fetch_request(begin: int) -> Any:
    from benchmarks.delay import fetch_request as made

    return made(TOPIC, begin, 1 << 20, 2000)


def test_metrics_show_what_is_copied_and_what_waits(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path / "store"), data_dir=str(tmp_path / "data"))
    with watched(broker) as seen:
        create(broker, remote_copy_lag_ms="3600000", local_retention_bytes="-2")
        produce(broker, 0, 1000)
        until(lambda: (seen.value("kbroker_remote_copy_lag_bytes") or 0) > 200_000)
        assert (seen.value("kbroker_remote_copy_lag_ms") or 0) > 50_000  # by the timestamps of the records
        assert seen.value("kbroker_remote_copied_bytes_total") == 0
        alter(broker, remote_copy_lag_ms="0", local_retention_bytes="30000")
        tiered(broker)
        until(lambda: seen.value("kbroker_remote_copy_lag_bytes") == 0)
        assert (seen.value("kbroker_remote_copied_bytes_total") or 0) > 200_000
        assert len(records(broker, 1000)) == 1000
        assert (seen.value("kbroker_remote_read_bytes_total") or 0) > 200_000
        assert (seen.value("kbroker_remote_cached_bytes") or 0) > 200_000
        assert seen.value("kbroker_remote_failures_total") == 0


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ({"cleanup.policy": "compact"}, "Remote log storage only supports topics with cleanup.policy=delete"),
        ({"cleanup.policy": "compact,delete"}, "Remote log storage only supports topics with cleanup.policy=delete"),
        (
            {"local.retention.ms": "1000", "retention.ms": "500"},
            "Invalid value 1000 for configuration local.retention.ms: "
            "Value must not be more than retention.ms property value: 500",
        ),
        (
            {"local.retention.bytes": "1000", "retention.bytes": "500"},
            "Invalid value 1000 for configuration local.retention.bytes: "
            "Value must not be more than retention.bytes property value: 500",
        ),
        (
            {"remote.copy.lag.ms": "1000", "local.retention.ms": "500"},
            r"Invalid value 1000 for configuration remote.copy.lag.ms: "
            r"Value must not exceed local.retention.ms \(effective value: 500\)",
        ),
        (
            {"remote.copy.lag.bytes": "1000", "local.retention.bytes": "500"},
            r"Invalid value 1000 for configuration remote.copy.lag.bytes: "
            r"Value must not exceed local.retention.bytes \(effective value: 500\)",
        ),
        (
            {"remote.log.copy.disable": "true", "local.retention.ms": "1000", "local.retention.bytes": "-2"},
            "When `remote.log.copy.disable` is set to true, the `local.retention.ms` and `retention.ms` must be set to",
        ),
    ],
)
def test_contradictory_configs_are_refused_with_kafkas_texts(
    broker: Broker | Cluster, configs: dict[str, str], text: str
) -> None:
    with pytest.raises(KafkaException, match=text):
        create(broker, **{key.replace(".", "_"): value for key, value in configs.items()})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "remote.log.storage.system.enable=true needs remote.storage.url"),
        ({"log.dirs": "/tmp/a,/tmp/b"}, "several log.dirs are not supported together with tiered storage"),
        ({"remote.storage.url": "ftp://a"}, "the address of a store begins with one of s3://"),
        ({"remote.storage.url": "file:///nowhere/at/all"}, "does not name an existing directory"),
        ({"remote.storage.url": "s3://b", "remote.storage.options": "secret"}, "has the form name=value,name=value"),
    ],
)
def test_settings_that_cannot_work_stop_the_start(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Broker({"remote.log.storage.system.enable": "true", **settings}).start()


def test_without_tiered_storage_a_topic_is_refused() -> None:
    with Broker() as broker, pytest.raises(KafkaException, match="Tiered Storage functionality is disabled"):
        create(broker)


def test_the_tiers_of_topics_are_shown(broker: Broker | Cluster, tmp_path: Path) -> None:
    kbroker = CommandLine(broker.bootstrap_servers)
    done = kbroker.ok("topic", "tiers", "--json")
    assert (done.json, "no topic that you can describe" in done.err) == ([], True)
    create(broker)
    broker.topics.create("plain")
    produce(broker, 0, 500)
    tiered(broker)
    (found,) = kbroker.ok("topic", "tiers", "--json").json
    assert [found[each] for each in ("topic", "partition", "start", "unfinished")] == [TOPIC, 0, 0, 0]
    assert found["local_start"] == offset(broker, LOCAL)
    assert found["latest_tiered"] == offset(broker, TIERED_TO)
    assert found["end"] == 500
    (pending,) = kbroker.ok("topic", "offsets", TOPIC, "--time", "earliest-pending-upload", "--json").json
    assert pending["offset"] == found["latest_tiered"] + 1
    logs = [each.stat().st_size for each in (tmp_path / "data" / f"{TOPIC}-0").glob("*.log")]
    assert found["local_bytes"] == sum(logs)
    objects = [path.stat().st_size for path in (tmp_path / "store").glob("*/0/*") if path.is_file()]
    assert found["remote_segments"] == len(objects)
    assert 0.9 * sum(objects) < found["remote_bytes"] < sum(objects)
    (plain,) = kbroker.ok("topic", "tiers", "plain", "--json").json
    assert [plain[each] for each in ("start", "local_start", "end", "remote_bytes", "remote_segments")] == [0] * 5
    assert plain["latest_tiered"] is None
    client = admin(broker)
    (deleted,) = client.delete_records([TopicPartition(TOPIC, 0, 300)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 300
    until(lambda: kbroker.ok("topic", "tiers", "--json").json[0]["remote_segments"] < found["remote_segments"])
    (after,) = kbroker.ok("topic", "tiers", TOPIC, "--json").json
    assert (after["start"], after["remote_bytes"] < found["remote_bytes"]) == (300, True)
    assert kbroker("topic", "tiers", "missing").status == 1
    broker.topics.create("view", config={"view.source": TOPIC, "view.filter": "tag"})
    assert f"is a view, which stores nothing: ask for its source {TOPIC}" in kbroker.fails("topic", "tiers", "view")


@pytest.mark.parametrize("may_describe", [True, False])
def test_the_tiers_of_a_topic_are_partly_unknown_without_the_right(tmp_path: Path, may_describe: bool) -> None:
    rights = [(TOPIC, "Describe"), (TOPIC, "DescribeConfigs")]
    if may_describe:
        rights.append(("__remote_log_metadata", "Describe"))  # but not Read
    acls = [Acl(allow_principal="User:alice", operation=each, topic=topic) for topic, each in rights]
    own = {**settings(tmp_path / "store"), "super.users": "User:admin"}
    with Broker(own, users={"admin": "a", "alice": "b"}, acls=acls, data_dir=str(tmp_path / "data")) as broker:
        broker.topics.create(TOPIC, config=TIERED)
        shared = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        produce(broker, 0, 300, **shared, **{"sasl.username": "admin", "sasl.password": "a"})
        logs = (tmp_path / "data").glob  # without a record there is nothing that alice may not read
        until(lambda: any(each.stat().st_size for each in logs("__remote_log_metadata-*/*.log")))
        settings_of_alice = {**shared, "sasl.username": "alice", "sasl.password": "b"}
        login = [word for each in settings_of_alice.items() for word in ("-X", "=".join(each))]
        done = CommandLine(broker.bootstrap_servers)("topic", "tiers", "--json", *login)
        (found,) = done.json
        assert (done.status, found["end"], found["remote_bytes"], found["local_bytes"]) == (1, 300, None, None)
        assert "the remote segments are unknown: " in done.err
        assert "the bytes on the disks are not known for all partitions" in done.err


def test_damaged_records_about_segments_hide_no_others(broker: Broker | Cluster, tmp_path: Path) -> None:
    """A batch that cannot be read is left out alone, and is counted."""
    create(broker)
    produce(broker, 0, 500)
    tiered(broker)
    kbroker = CommandLine(broker.bootstrap_servers)
    (before,) = kbroker.ok("topic", "tiers", "--json").json
    logs = (tmp_path / "data").glob("__remote_log_metadata-*/*.log")
    (path,) = [each for each in logs if each.stat().st_size]
    data = bytearray(path.read_bytes())
    position, header = list(iter_batches(bytes(data)))[-1]  # a copy that is complete
    data[position + header.size - 1] ^= 1
    path.write_bytes(data)
    done = kbroker("topic", "tiers", "--json")
    (after,) = done.json
    assert (done.status, after["unfinished"]) == (1, 1)
    assert after["remote_segments"] == before["remote_segments"] - 1
    assert "1 records or batches of __remote_log_metadata cannot be read" in done.err


def test_a_view_begins_with_the_records_on_the_local_disk(broker: Broker | Cluster) -> None:
    """A client that reads from the beginning would otherwise be out of range again and again."""
    create(broker)
    produce(broker, 0, 500)
    tiered(broker)
    broker.topics.create("view", config={"view.source": TOPIC, "view.filter": "key = '499'"})
    kbroker = CommandLine(broker.bootstrap_servers)
    before = offset(broker, LOCAL)
    begins = [
        kbroker.ok("topic", "offsets", "view", "--time", each, "--json").json[0]["offset"]
        for each in ("earliest", "earliest-local", "latest-tiered", "earliest-pending-upload")
    ]
    assert begins[2:] == [None, None]
    assert 0 < before <= begins[0] <= begins[1] <= offset(broker, LOCAL)  # retention goes on meanwhile
    assert kbroker.ok("consume", "view", "--from-beginning", "--until-end", "-f", "%o %k\\n").lines == ["499 499"]

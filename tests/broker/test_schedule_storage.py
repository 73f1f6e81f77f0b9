"""What schedule topics keep on disk: retention, deletions, a lost index, and bursts beside others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kbroker import Broker
from kbroker.log.files import SCHEDULES, SCHEDULES_FILES
from kbroker.log.partition_log import PartitionLog

SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime", "schedule.target.topic": "now"}
PATIENCE_S = 30.0
HOUR_MS = b"3600000"


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def values(broker: Broker, topic: str = "now") -> list[bytes | None]:
    return [each.value for each in broker.topics[topic].records()]


def log_of(broker: Broker, topic: str) -> PartitionLog:
    assert broker._node is not None
    partition = broker._node.replicas.get((topic, 0))
    assert partition is not None
    return partition.log


def created(broker: Broker, **configs: str) -> None:
    broker.topics.create("now", config={"retention.ms": "-1"})
    own = {name.replace("_", "."): value for name, value in configs.items()}
    broker.topics.create("later", config={**SCHEDULED, **own})


def put(broker: Broker, value: str, after_ms: bytes, key: str | None = None) -> None:
    broker.topics["later"].produce(value, key=key, headers=[("x-deliver-after", after_ms)])


def test_retention_keeps_what_is_pending_and_says_so() -> None:
    with Broker(config={"log.retention.check.interval.ms": "1000"}) as broker:
        created(broker, retention_ms="60000", internal_segment_bytes="1024", file_delete_delay_ms="1000")
        put(broker, "kept", b"7200000")
        for number in range(50):
            put(broker, str(number), b"0")
        until(lambda: len(values(broker)) == 50)
        log = log_of(broker, "later")
        segments = len(log.segments)
        assert segments > 3
        broker.clock.advance(minutes=10)
        broker.clock.advance(seconds=2)
        assert (log.log_start_offset, len(log.segments)) == (0, segments)
        assert log.held_bytes > 1024
        broker.clock.advance(hours=2)
        until(lambda: b"kept" in values(broker))
        broker.clock.advance(minutes=10)
        broker.clock.advance(seconds=2)
        assert log.log_start_offset > 50
        assert log.held_bytes == 0


def test_a_lost_index_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        created(broker)
        put(broker, "fired", b"0")
        put(broker, "replaced", b"5000", "k")
        put(broker, "newer", b"2000", "k")
        put(broker, "cancelled", b"2000", "c")
        broker.topics["later"].produce(None, key="c")
        put(broker, "far", HOUR_MS)
        until(lambda: values(broker) == [b"fired"])
    for name in SCHEDULES_FILES:
        (tmp_path / "later-0" / name).unlink(missing_ok=True)
    with Broker(data_dir=tmp_path) as broker:
        until(lambda: values(broker) == [b"fired", b"newer"])
        assert (tmp_path / "later-0" / SCHEDULES).exists()
        broker.clock.advance(hours=1)
        until(lambda: values(broker) == [b"fired", b"newer", b"far"])


def configure(broker: Broker, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entries = [
        ConfigEntry(name.replace("_", "."), setting, incremental_operation=AlterConfigOpType.SET)
        for name, setting in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, "later", incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@pytest.mark.parametrize("named", [True, False], ids=["target in the record", "target of the topic"])
@pytest.mark.parametrize("turned_off", [True, False], ids=["turned off and on", "another target"])
def test_what_is_pending_outlives_another_target_old_segments_and_the_index(
    tmp_path: Path, named: bool, turned_off: bool
) -> None:
    config = {"log.retention.check.interval.ms": "1000"}
    with Broker(data_dir=tmp_path, config=config) as broker:
        broker.topics.create("other")
        created(broker, retention_ms="60000", internal_segment_bytes="1024", file_delete_delay_ms="1000")
        for number in range(50):
            put(broker, str(number), b"0")
        until(lambda: len(values(broker)) == 50)
        headers = [("x-deliver-after", b"7200000"), *([("x-deliver-to", b"now")] if named else [])]
        broker.topics["later"].produce("pending", headers=headers)
        broker.clock.advance(minutes=10)
        broker.clock.advance(seconds=2)
        log = log_of(broker, "later")
        until(lambda: log.log_start_offset > 0)
        if turned_off:
            configure(broker, schedule_enable="false", schedule_target_topic="")
            configure(broker, schedule_enable="true", schedule_target_topic="other")
        configure(broker, schedule_target_topic="other")
        put(broker, "last", b"0")
        until(lambda: values(broker, "other") == [b"last"])
    for name in SCHEDULES_FILES:
        (tmp_path / "later-0" / name).unlink(missing_ok=True)
    with Broker(data_dir=tmp_path, config=config) as broker:
        broker.clock.advance(hours=3)
        until(lambda: values(broker)[-1] == b"pending")


def test_its_files_go_with_the_topic(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        created(broker, file_delete_delay_ms="0")
        put(broker, "far", HOUR_MS)
        until((tmp_path / "later-0" / SCHEDULES).exists)
        broker.topics["later"].delete()
        broker.clock.advance(minutes=2)
        until(lambda: not list(tmp_path.glob("later-0*")))


def test_what_was_pending_waits_over_a_restart_while_the_config_is_off(tmp_path: Path) -> None:
    def enable(broker: Broker, value: str) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        target = "now" if value == "true" else ""
        entries = [
            ConfigEntry(name, setting, incremental_operation=AlterConfigOpType.SET)
            for name, setting in (("schedule.enable", value), ("schedule.target.topic", target))
        ]
        resource = ConfigResource(ResourceType.TOPIC, "later", incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    with Broker(data_dir=tmp_path) as broker:
        created(broker)
        put(broker, "waits", b"1000")
        enable(broker, "false")
        put(broker, "while it was off", b"0")
    with Broker(data_dir=tmp_path) as broker:
        put(broker, "while it was off", b"0")
        time.sleep(1.2)  # the time at which it was due
        assert values(broker) == []
        log = log_of(broker, "later")
        assert log.kept_from is not None
        enable(broker, "true")
        put(broker, "last", b"0")
        until(lambda: set(values(broker)) == {b"waits", b"last"})


def test_a_burst_holds_up_no_other_target() -> None:
    with Broker() as broker:
        created(broker)
        broker.topics.create("quiet")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50})
        due = b"%d" % (int(time.time() * 1000) + 4000)
        for number in range(20_000):
            producer.produce("later", str(number), headers=[("x-deliver-at", due)])
            producer.poll(0)
        headers = [("x-deliver-at", due), ("x-deliver-to", b"quiet")]
        producer.produce("later", "alone", headers=headers)
        assert producer.flush(PATIENCE_S) == 0
        until(lambda: values(broker, "quiet") == [b"alone"])
        (alone,) = broker.topics["quiet"].records()
        until(lambda: log_of(broker, "now").log_end_offset >= 20_000)
        last = broker.topics["now"].records(0, start=19_990)[-1]
        assert sorted(values(broker), key=lambda each: int(each or 0)) == [b"%d" % each for each in range(20_000)]
        assert alone.timestamp < last.timestamp


def test_large_records_and_compressed_ones_arrive_unchanged() -> None:
    with Broker() as broker:
        created(broker)
        sizes = (1, 100, 130_000, 200_000, 900_000)
        for codec in ("none", "lz4", "zstd", "gzip", "snappy"):
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "compression.type": codec})
            for size in sizes:
                value = bytes(each % 251 for each in range(size))
                producer.produce("later", value, f"{codec}{size}", headers=[("x-delay", "0"), ("other", codec)])
            assert producer.flush(PATIENCE_S) == 0
        until(lambda: len(values(broker)) == 5 * len(sizes))
        for each in broker.topics["now"].records():
            assert each.key is not None
            assert each.value is not None
            name = dict(each.headers)["other"] or b""
            assert each.key == name + b"%d" % len(each.value)
            assert each.value == bytes(place % 251 for place in range(len(each.value)))

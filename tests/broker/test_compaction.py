"""Compaction in a running broker, with real clients: topics, the offsets topic, and the worker's end."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from compat_tests.harness.brokers import KBroker
from compat_tests.harness.jvm import dump_log_segments
from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.broker import periodic_work
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from tests.log.test_kafka_reads import TROUBLE

SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.segment.delete.delay.ms": "1",
    "log.retention.check.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.segment.bytes": str(1 << 20),
}
SEGMENT = 1 << 20
DEADLINE_S = 90


@pytest.fixture(autouse=True)
def ticks_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periodic_work, "_TICK_SECONDS", 0.05)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.05)


def create(address: str, topic: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = {"segment.bytes": str(SEGMENT), "cleanup.policy": "compact", **configs}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=wanted)]).values():
        future.result(30)


def produce(address: str, topic: str, rounds: int, keys: int = 100, **config: object) -> dict[bytes, bytes]:
    """Write `rounds` values of 1 kB for each key; returns the last values."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, **config})
    last = {}
    for index in range(rounds):
        for number in range(keys):
            key = b"key-%d" % number
            last[key] = b"%d " % index + bytes(1000)
            producer.produce(topic, last[key], key)
        producer.poll(0)
    assert producer.flush(60) == 0
    return last


def consume(address: str, topic: str, enough: Callable[[dict[bytes, bytes]], bool]) -> tuple[dict[bytes, bytes], int]:
    """Read from the start until `enough` is true; returns the last value of each key, and the number of records."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[bytes, bytes] = {}
    count, before = 0, -1
    deadline = time.monotonic() + DEADLINE_S
    while not enough(found):
        assert time.monotonic() < deadline, "records are missing"
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            assert message.offset() > before
            before = message.offset()
            found[message.key()] = message.value()
            count += 1
    consumer.close()
    return found, count


def cleaned_to(directory: str | Path, topic: str) -> int:
    path = Path(directory) / "cleaner-offset-checkpoint"
    found = re.search(rf"^{topic} 0 (\d+)$", path.read_text() if path.exists() else "", re.MULTILINE)
    return int(found.group(1)) if found else 0


def active_base(directory: str | Path, topic: str) -> int:
    return max(int(path.stem) for path in (Path(directory) / f"{topic}-0").glob("*.log"))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def is_clean(directory: str | Path, topic: str) -> bool:
    return 0 < cleaned_to(directory, topic) == active_base(directory, topic)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_consumers_find_the_last_value_of_each_key(tmp_path: Path, codec: str) -> None:
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        address = broker.bootstrap_servers
        create(address, "compacted")
        last = produce(address, "compacted", 100, **{"compression.type": codec, "enable.idempotence": True})
        if codec != "none":  # compressed zeros do not fill a segment
            close_segment(broker)
        until(lambda: is_clean(tmp_path, "compacted"))
        found, count = consume(address, "compacted", lambda found: found == last)
        assert found == last
        assert count < 100 * 100 / 2
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        assert consume(broker.bootstrap_servers, "compacted", lambda found: found == last) == (found, count)


def close_segment(broker: Broker) -> None:
    """Close the active segment of the topic, on the broker's own loop."""
    loop = broker._loop
    assert loop is not None

    async def roll() -> None:
        node = broker.node
        node.replicas.get(("compacted", 0)).log.roll(node.clock.now_ms())

    asyncio.run_coroutine_threadsafe(roll(), loop).result(30)


def test_a_consumer_reads_while_the_log_is_compacted_again_and_again(tmp_path: Path) -> None:
    with Broker({**SETTINGS, "log.cleaner.min.cleanable.ratio": "0.01"}, data_dir=str(tmp_path)) as broker:
        address = broker.bootstrap_servers
        create(address, "compacted")
        reached = []
        for _ in range(4):
            last = produce(address, "compacted", 30)
            found, _ = consume(address, "compacted", lambda found, last=last: found == last)
            assert found == last
            until(lambda: is_clean(tmp_path, "compacted"))
            reached.append(cleaned_to(tmp_path, "compacted"))
        assert len(set(reached)) == len(reached)


@pytest.mark.long
def test_a_group_with_many_commits_keeps_a_small_log(tmp_path: Path) -> None:
    commits, partitions = 1_500, 5  # some 8 MB
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        create(broker.bootstrap_servers, "t", partitions)
        with WireClient(broker.bootstrap_servers) as client:
            until(lambda: client.ask(FindCoordinatorRequest(key="committer"), 1).error_code == 0)
            until(lambda: commit(client, 0, 1) == [0])
            for number in range(commits):
                assert commit(client, number, partitions) == [0] * partitions
        until(lambda: is_clean(tmp_path, "__consumer_offsets"))
        assert size_of(tmp_path / "__consumer_offsets-0") < 1_100_000  # the active segment and hardly any other
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        with WireClient(broker.bootstrap_servers) as client:
            wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=list(range(partitions)))]
            request = OffsetFetchRequest(group_id="committer", topics=wanted)
            until(lambda: client.ask(request, 7).error_code == 0)
            answer = client.ask(request, 7)
        told = [(p.partition_index, p.committed_offset, p.metadata) for p in answer.topics[0].partitions]
        assert told == [(index, commits - 1, metadata(commits - 1)) for index in range(partitions)]


def metadata(number: int) -> str:
    return f"m{number}".ljust(1_000)


def commit(client: WireClient, number: int, partitions: int) -> list[int]:
    wanted = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=number, committed_metadata=metadata(number)
        )
        for index in range(partitions)
    ]
    request = OffsetCommitRequest(group_id="committer", topics=[OffsetCommitRequestTopic(name="t", partitions=wanted)])
    return [p.error_code for p in client.ask(request, 7).topics[0].partitions]


@pytest.mark.long
def test_the_worker_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    slow = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "20000"}
    broker = KBroker(tmp_path, slow)
    with broker:
        create(broker.bootstrap, "compacted")
        last = produce(broker.bootstrap, "compacted", 50)
        until(lambda: psutil.Process(broker.pid).children())
        (worker,) = psutil.Process(broker.pid).children()
        broker.kill()
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    with KBroker(tmp_path, SETTINGS) as again:
        until(lambda: is_clean(again.data_dir, "compacted"))
        found, _ = consume(again.bootstrap, "compacted", lambda found: found == last)
        assert found == last


def test_keys_that_are_changed_while_the_broker_runs_count(tmp_path: Path) -> None:
    with Broker({**SETTINGS, "log.cleaner.min.compaction.lag.ms": "86400000"}, data_dir=str(tmp_path)) as broker:
        create(broker.bootstrap_servers, "compacted")
        produce(broker.bootstrap_servers, "compacted", 50)
        assert broker.node.cleaner_pool.pids == []
        entry = ConfigEntry("log.cleaner.min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker.node.node_id), incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)
        until(lambda: is_clean(tmp_path, "compacted"))


@pytest.mark.java
def test_dump_log_segments_reads_a_cleaned_log(tmp_path: Path, kafka_libs: Path) -> None:
    with Broker(SETTINGS, data_dir=str(tmp_path)) as broker:
        create(broker.bootstrap_servers, "compacted")
        produce(broker.bootstrap_servers, "compacted", 50, **{"enable.idempotence": True})
        until(lambda: is_clean(tmp_path, "compacted"))
    directory = tmp_path / "compacted-0"
    logs = sorted(directory.glob("*.log"))
    text = dump_log_segments(kafka_libs, logs, "--deep-iteration")
    assert not TROUBLE.search(re.sub(r"isvalid: true", "", text)), text
    assert 100 <= text.count("| offset: ") < 50 * 100
    indexes = [*directory.glob("*.index"), *directory.glob("*.timeindex")]
    # The index of a segment that compaction has replaced is removed after its log. A stop may come between the two, and
    # then the next start removes the index.
    indexes = [each for each in indexes if each.with_suffix(".log").exists()]
    assert len(indexes) >= 2
    assert not TROUBLE.search(dump_log_segments(kafka_libs, indexes, "--deep-iteration"))
    sane = dump_log_segments(kafka_libs, indexes, "--index-sanity-check")
    assert sane.count("passed sanity check") + sane.count("is empty.") == len(indexes), sane

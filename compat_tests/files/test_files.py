"""Both ways: Kafka's files in kbroker, kbroker's files in Kafka 3.9.1 on ZooKeeper and in 4.4.0; all answers equal."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat_tests.clients.common import T0
from compat_tests.files import kafka_side
from compat_tests.files.answers import Answers, ask_all, differing, questions, ready, settled
from compat_tests.files.workload import (
    BROKER,
    COMPACTED,
    COMPACTED_RECORDS,
    TOPICS,
    TXN,
    Transactions,
    create_all,
    delete_prefix,
    wait_until_compacted,
    write_plain,
)
from compat_tests.harness import report
from compat_tests.harness.brokers import ApacheKafka, BrokerProcess, KBroker
from compat_tests.harness.jvm import dump_log_segments
from compat_tests.harness.parts import fetch
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from kbroker import handlers
from kbroker.controller.adopt import adopt
from kbroker.log import checkpoints
from kbroker.log.append_info import COORDINATOR
from kbroker.log.batch_scan import scan_headers
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.files import FileHandle
from kbroker.log.log_config import LogConfig
from kbroker.log.offline.check import audit
from kbroker.log.offline.dump import dump
from kbroker.protocol.records import build_batch, build_marker

pytestmark = pytest.mark.java
handlers.load_all()

NEWEST_LISTED = {"4.4.0": 11, "3.9.1": 9}
# Compacted data do not change while answers are compared.
ADOPTED = {name: {**configs, "min.cleanable.dirty.ratio": "1.0"} for name, configs in TOPICS.items()}


@dataclass
class Written:
    """A data directory that no broker uses, and what its broker had answered about it."""

    data: Path
    asked: dict[str, tuple[list[int], list[int], list[int]]]
    answers: dict[str, Answers]


@contextmanager
def apache(
    version: str, directory: Path, settings: Mapping[str, str]
) -> Iterator[tuple[BrokerProcess, ZooKeeper | None]]:
    """Yield an Apache Kafka that does not run yet, with the ZooKeeper that it needs; both are stopped at the end."""
    with ExitStack() as stack:
        zookeeper = None
        broker: BrokerProcess
        if version == "3.9.1":
            libs = fetch("kafka39")
            zookeeper = stack.enter_context(ZooKeeper(libs, directory / "zookeeper"))
            broker = Kafka39(libs, directory / "kafka", zookeeper, settings)
        else:
            broker = ApacheKafka(fetch("kafka"), directory / "kafka", settings)
        stack.callback(broker.stop)
        yield broker, zookeeper


def asked_of(broker: BrokerProcess, topics: Mapping[str, object], special: int) -> Written:
    """Ask a running broker every question."""
    ready(broker.bootstrap, topics)
    written = Written(broker.data_dir, {}, {})
    for topic in topics:
        offsets, timestamps = questions(broker.bootstrap, topic)
        known = checkpoints.read_epochs(str(broker.data_dir / f"{topic}-0" / checkpoints.LEADER_EPOCHS))
        epochs = list(range(known[-1][0] + 1))
        written.asked[topic] = offsets, timestamps, epochs
        written.answers[topic] = ask_all(broker.bootstrap, topic, offsets, timestamps, epochs, special)
    return written


def hold_against(written: Written, broker: BrokerProcess, special: int, *, recovered: bool = False) -> int:
    """Ask another broker the same questions; returns how many answers were equal, and fails if one differs."""
    ready(broker.bootstrap, written.asked)
    count, found = 0, []
    for topic, (offsets, timestamps, epochs) in written.asked.items():
        theirs = ask_all(broker.bootstrap, topic, offsets, timestamps, epochs, special)
        expected = {key: value for key, value in written.answers[topic].items() if key in theirs}
        found += [f"{topic}: {line}" for line in differing(expected, theirs, recovered=recovered)]
        count += len(expected)
    assert not found, f"{len(found)} answers differ\n" + "\n".join(found[:60])
    return count


def new_epochs(zookeeper: ZooKeeper) -> None:
    """Start a new leader epoch in every partition, as an election between two brokers would."""
    import json

    with zookeeper.tree() as client:
        for topic in TOPICS:
            path = f"/brokers/topics/{topic}/partitions/0/state"
            state = json.loads(client.get(path)[0])
            client.set(path, json.dumps({**state, "leader_epoch": state["leader_epoch"] + 2}).encode())


@pytest.fixture(scope="module", params=["4.4.0", "3.9.1"])
def of_kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Written]:
    """Return a directory that Apache Kafka wrote: codecs, transactions, compaction, a deleted prefix, epochs."""
    version: str = request.param
    directory = tmp_path_factory.mktemp(f"kafka-{version}")
    with apache(version, directory, BROKER) as (broker, zookeeper):
        for half in (0, 1):
            if half and zookeeper is not None:
                new_epochs(zookeeper)
            broker.start()
            settled(broker.bootstrap)
            if not half:
                create_all(broker.bootstrap, TOPICS)
            ready(broker.bootstrap, TOPICS)
            write_plain(broker.bootstrap, half, TOPICS)
            transactions = Transactions(broker.bootstrap, half)
            transactions.run(TOPICS)
            if half:
                transactions.leave_open()
                delete_prefix(broker.bootstrap)
                wait_until_compacted(broker.data_dir)
                with pytest.raises(LogDirError):
                    adopt(str(broker.data_dir), {})
                # The indexes are preallocated, and there is no marker of a clean shutdown.
                assert [str(finding) for finding in audit(str(broker.data_dir))] == []
                written = asked_of(broker, TOPICS, NEWEST_LISTED[version])
            assert broker.stop() in (0, 143)
    check_kinds(written)
    return version, written


@pytest.fixture(scope="module")
def of_kbroker(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Return a directory that kbroker wrote, with the same contents."""
    broker = KBroker(tmp_path_factory.mktemp("kbroker"), BROKER)
    try:
        broker.start()
        create_all(broker.bootstrap, TOPICS)
        write_plain(broker.bootstrap, 0, TOPICS)
        broker.kill()
        broker.start()
        write_plain(broker.bootstrap, 1, TOPICS)
        delete_prefix(broker.bootstrap)
        wait_until_compacted(broker.data_dir)
        assert broker.stop() == 0
        write_transactions(broker.data_dir)
        broker.start()
        written = asked_of(broker, TOPICS, max(NEWEST_LISTED.values()))
        assert broker.stop() == 0
    finally:
        broker.stop()
    check_kinds(written)
    return written


def check_kinds(written: Written) -> None:
    """Assert that the data to compare exist: epochs, aborted transactions, records that compaction removed."""
    assert all(len(epochs) > 1 for _, _, epochs in written.asked.values())
    assert any(answer[-1] for key, answer in written.answers[TXN].items() if key.endswith("isolation 1"))
    files, records = records_in(written.data, {COMPACTED: None})
    assert files > 1
    assert records < COMPACTED_RECORDS


def write_transactions(data: Path) -> None:
    """Append transactions of two producers as a leader and a transaction coordinator do; one stays open."""
    logs = LogDirectory(str(data), node_id=1)
    config = LogConfig.from_map(TOPICS[TXN])
    clock = itertools.count(T0 + 1_200_000, 700)
    logs.load(lambda _topic: config, T0)
    log = logs.logs[TXN, 0]
    sequences = {1000: 0, 1001: 0}

    def send(producer: int, epoch: int) -> None:
        records = [(next(clock), b"k", b"t" * 40, ()) for _ in range(3)]
        batch = build_batch(
            records, codec=producer % 5, producer_id=producer, producer_epoch=3, base_sequence=sequences[producer],
            transactional=True,
        )  # fmt: skip
        sequences[producer] += 3
        log.append_as_leader(batch, epoch, T0)

    def end(producer: int, epoch: int, commit: bool) -> None:
        marker = build_marker(
            producer_id=producer, producer_epoch=3, commit=commit, coordinator_epoch=2, timestamp=next(clock)
        )
        log.append_as_leader(marker, epoch, T0, origin=COORDINATOR)
        log.set_high_watermark(log.log_end_offset)

    for turn in range(8):
        epoch = turn // 4
        for producer in (1000, 1001, 1000):
            send(producer, epoch)
        end(1000, epoch, commit=turn % 2 == 0)
        send(1001, epoch)
        end(1001, epoch, commit=turn % 3 == 0)
    send(1000, 1)
    log.set_high_watermark(log.log_end_offset)
    logs.close(now_ms=T0)


def records_in(data: Path, topics: Mapping[str, object]) -> tuple[int, int]:
    """Return the log files of some topics, and the records in them."""
    paths = [path for topic in topics for path in data.glob(f"{topic}-0/*.log")]
    records = 0
    for path in paths:
        file = FileHandle(str(path), os.O_RDONLY)
        records += sum(header.record_count for _, header in scan_headers(file, 0, os.path.getsize(path)))
    return len(paths), records


def test_kafkas_files_open_in_kbroker(of_kafka: tuple[str, Written], tmp_path: Path) -> None:
    version, written = of_kafka
    assert [str(finding) for finding in audit(str(written.data))] == []
    broker = KBroker(tmp_path / "kbroker")
    shutil.copytree(written.data, broker.data_dir)
    adopted = {topic.name: topic for topic in adopt(str(broker.data_dir), ADOPTED)}
    special = NEWEST_LISTED[version]
    with broker:
        count = hold_against(written, broker, special)
    for topic, (_, _, epochs) in written.asked.items():
        assert adopted[topic].partitions[0].leader_epoch == len(epochs)
    assert contents(broker.data_dir, ".log") == contents(written.data, ".log")
    signed = meta_properties.read_properties(str(broker.data_dir / meta_properties.META_PROPERTIES)) or {}
    assert signed["version"] == ("0" if version == "3.9.1" else "1")
    report.count_files(f"Apache Kafka {version} -> kbroker", *records_in(written.data, TOPICS), count)

    (broker.data_dir / checkpoints.CLEAN_SHUTDOWN).unlink()
    (broker.data_dir / checkpoints.RECOVERY_POINTS).unlink()
    with broker:
        count = hold_against(written, broker, special, recovered=True)
    assert contents(broker.data_dir, ".log") == contents(written.data, ".log")
    assert [str(finding) for finding in audit(str(broker.data_dir))] == []
    report.count_files(f"Apache Kafka {version} -> kbroker, recovered", *records_in(written.data, TOPICS), count)


def test_the_dump_is_that_of_kafkas_tool(of_kafka: tuple[str, Written]) -> None:
    compare_dumps(of_kafka[1].data)


def test_the_dump_of_our_own_files_is_that_of_kafkas_tool(of_kbroker: Written) -> None:
    assert [str(finding) for finding in audit(str(of_kbroker.data))] == []
    compare_dumps(of_kbroker.data)


def compare_dumps(data: Path) -> None:
    """Compare every line of the dump with DumpLogSegments."""
    kinds = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    paths = sorted(path for path in data.glob("files-*/*") if path.suffix in kinds)
    assert {path.suffix for path in paths} == set(kinds)
    theirs = dump_log_segments(fetch("kafka"), paths, "--deep-iteration", "--print-data-log")
    ours = "".join(f"{line}\n" for path in paths for line in dump(str(path), deep=True, contents=True))
    for number, (a, b) in enumerate(zip(ours.split("\n"), theirs.split("\n"), strict=False)):
        assert a == b, f"line {number}"
    assert len(ours) == len(theirs) > 10_000


def contents(data: Path, *suffixes: str) -> dict[str, bytes]:
    """Return the bytes of files of some topics, by name.

    Leaves out snapshots at or below the log start offset: Kafka removes these whenever it loads a log, also from its
    own logs.
    """
    starts = {f"{topic}-{index}": at for (topic, index), at in log_starts(data).items()}
    found = [path for path in data.glob("files-*/*") if path.suffix in suffixes]
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in found
        if path.suffix != ".snapshot" or int(path.stem) > starts.get(path.parent.name, 0)
    }


def log_starts(data: Path) -> dict[tuple[str, int], int]:
    return checkpoints.read_offsets(str(data / checkpoints.LOG_STARTS))


@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_our_files_open_in_kafka(version: str, of_kbroker: Written, tmp_path: Path) -> None:
    special = NEWEST_LISTED[version]
    # Compacted data do not change while answers are compared.
    with apache(version, tmp_path, {"log.cleaner.enable": "false"}) as (broker, zookeeper):
        if zookeeper is not None:
            shutil.copytree(of_kbroker.data, broker.data_dir)
            kafka_side.sign_for_zookeeper(broker.data_dir)
            kafka_side.publish(broker.data_dir, zookeeper)
        else:
            broker.start()
            settled(broker.bootstrap)
            create_all(broker.bootstrap, TOPICS)
            ready(broker.bootstrap, TOPICS)
            assert broker.stop() in (0, 143)
            kafka_side.put_in_place(of_kbroker.data, broker.data_dir, TOPICS)
        before = contents(broker.data_dir, ".log", ".txnindex", ".snapshot", ".index", ".timeindex")
        broker.start()
        count = hold_against(of_kbroker, broker, special)
        assert broker.stop() in (0, 143)
        report.count_files(f"kbroker -> Apache Kafka {version}", *records_in(of_kbroker.data, TOPICS), count)
        unchanged(before, broker.data_dir)

        (broker.data_dir / checkpoints.CLEAN_SHUTDOWN).unlink()
        (broker.data_dir / checkpoints.RECOVERY_POINTS).unlink()
        broker.start()
        count = hold_against(of_kbroker, broker, special, recovered=True)
        assert broker.stop() in (0, 143)
        assert broker.log_file.read_text().count("Recovering unflushed segment") >= len(before) // 5
        report.count_files(f"kbroker -> Apache Kafka {version}, recovered", *records_in(of_kbroker.data, TOPICS), count)
        unchanged(before, broker.data_dir)


def unchanged(before: dict[str, bytes], data: Path) -> None:
    """Assert that Kafka did not change a byte."""
    after = contents(data, ".log", ".txnindex", ".snapshot", ".index", ".timeindex")
    assert sorted(before.keys() - after.keys()) == []
    assert sorted(after.keys() - before.keys()) == []
    assert [name for name in before if before[name] != after[name]] == []

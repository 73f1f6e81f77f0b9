"""A broker whose disk is lost, restored from remote storage: records, offsets, groups and transactions compared."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from kbroker import Broker
from kbroker.failpoints import VARIABLE
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.remote.object_format import Part, parse_object_name
from kbroker.remote.segment_objects import SegmentObject, write_segment
from kbroker.remote.store import open_store
from tests.cli.conftest import CommandLine
from tests.tiers.test_broker import (
    EARLIEST,
    LATEST,
    LOCAL,
    PATIENCE_S,
    TIERED,
    TIERED_TO,
    TOPIC,
    alter,
    create,
    offset,
    offset_at,
    produce,
    records,
    settings,
    until,
)

GAP = 1000
NOWHERE = CommandLine("127.0.0.1:1")
"""A command line without a broker."""
FAST = {"remote.storage.state.interval.ms": "1000"}


def restored(cli: CommandLine, tmp_path: Path, *more: str) -> Any:
    """Lose the disk, and return the document of a restore."""
    shutil.rmtree(tmp_path / "data")
    where = f"file://{tmp_path / 'store'}"
    done = cli("log", "restore", str(tmp_path / "data"), "--from", where, "--gap", str(GAP), "--json", *more)
    assert (done.status, done.err) == (0, "")
    return done.json


def states(store: Path) -> list[Path]:
    found = [path for path in (store / "broker-state").glob("*/*/*") if "#" not in path.name]
    return sorted(found, key=lambda path: path.stat().st_mtime)


def copied(broker: Broker, store: Path) -> None:
    """Wait for a state copy that was begun after this call, which produces a record."""
    produce_plain(broker, 0)
    until(lambda: (found := states(store)) and b'["plain", 0, 0, 1]' in found[-1].read_bytes())


def produce_plain(broker: Broker, partition: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("plain", b"x", partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def readable(
    broker: Broker, isolation: str = "read_uncommitted", begin: int = 0
) -> list[tuple[int, bytes, bytes, int]]:
    """Return (offset, key, value, timestamp) of all records.

    At the end, the position of this client is the end of the records, before a batch without records.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, begin)])
    found = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        found.append((message.offset(), message.key() or b"", message.value() or b"", message.timestamp()[1]))
    assert message is not None
    assert message.error().name() == "_PARTITION_EOF", message.error()
    consumer.close()
    return found


def committed(broker: Broker, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    (found,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
    consumer.close()
    return int(found.offset)


def commit(broker: Broker, group: str, at: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, at)], asynchronous=False)
    consumer.close()


def test_a_lost_disk(tmp_path: Path) -> None:
    store, own = tmp_path / "store", {**settings(tmp_path / "store"), **FAST}
    with Broker(own, data_dir=str(tmp_path / "data")) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        create(broker)
        broker.topics.create("plain", partitions=2)
        produce(broker, 0, 500)
        produce(broker, 500, 100, **{"transactional.id": "aborted"})
        produce(broker, 600, 100, **{"transactional.id": "committed"})
        produce_plain(broker, 1)
        commit(broker, "readers", 123)
        commit(broker, "ahead", offset(broker, LATEST))
        cluster = cli("broker", "cluster-id").text
        ends = cli.ok("topic", "offsets", TOPIC, "--json").json
        tiers = until(lambda: (found := tier_of(broker)) and (found["local_start"] or 0) > 400 and found)
        before, stable = readable(broker), readable(broker, "read_committed")
        copied(broker, store)
    document = restored(cli, tmp_path)
    assert document["own_topics"] == ["__consumer_offsets", "__remote_log_metadata", "__transaction_state"]
    by_key = {(each["topic"], each["partition"]): each for each in document["partitions"]}
    end = next(each["offset"] for each in ends if each["topic"] == TOPIC)
    tiered = by_key[TOPIC, 0]
    assert (tiered["start"], tiered["end"]) == (0, end + GAP)
    assert tiered["remote_end"] >= tiers["latest_tiered"] + 1
    assert tiered["lost_offsets"] == end - tiered["remote_end"]
    with Broker(own, data_dir=str(tmp_path / "data")) as broker:
        cli = CommandLine(broker.bootstrap_servers)
        assert cli("broker", "cluster-id").text == cluster
        assert readable(broker) == [each for each in before if each[0] < tiered["remote_end"]]
        assert readable(broker, "read_committed") == [each for each in stable if each[0] < tiered["remote_end"]]
        assert (committed(broker, "readers"), committed(broker, "ahead")) == (123, end)
        assert offset(broker, LATEST) == end + GAP
        produce(broker, 1000, 10)
        assert [each[0] for each in records(broker, end + GAP + 10, end)] == list(range(end + GAP, end + GAP + 10))
        produce(broker, 2000, 10, **{"transactional.id": "committed"})
        assert cli.ok("config", "describe", "--topic", TOPIC, "--json").json
        produce_plain(broker, 1)
        plain = {
            which: cli.ok("topic", "offsets", "plain", "--time", which, "--json").json[1]["offset"]
            for which in ("earliest", "latest")
        }
        assert plain == {"earliest": 0, "latest": 1 + GAP + 1}, "committed offsets stay within the log"
    done = NOWHERE("log", "check", str(tmp_path / "data"), "--from", f"file://{store}", "--deep")
    assert (done.status, "all is well" in done.text) == (0, True), done.text


class Lost:
    """What is left of a broker whose disk is lost: its store, with a state copy from before its last segments."""

    def __init__(self, store: Path, early: bytes, records: list[tuple[int, bytes, bytes, int]], end: int) -> None:
        self.store = store
        self.early = early
        """The content of a state copy from before the last segments."""
        self.records = records
        self.end = end

    def copy(self, directory: Path) -> Path:
        """Return the store, copied into a directory."""
        shutil.copytree(self.store, directory / "store")
        return directory / "store"


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    directory = tmp_path_factory.mktemp("lost")
    store = directory / "store"
    own = {**settings(store), **FAST}
    with Broker(own, data_dir=str(directory / "data")) as broker:
        create(broker)
        broker.topics.create("plain", partitions=1)
        produce(broker, 0, 300)
        copied(broker, store)
        early = states(store)[-1].read_bytes()
        produce(broker, 300, 300)
        end = offset(broker, LATEST)
        until(lambda: offset(broker, LOCAL) > 300)
        produce_plain(broker, 0)
        until(lambda: b'["plain", 0, 0, 2]' in states(store)[-1].read_bytes())
        found = readable(broker)
    return Lost(store, early, found, end)


def restore(store: Path, directory: Path, *more: str) -> Any:
    """Restore a directory; return the finished command."""
    return NOWHERE("log", "restore", str(directory), "--from", f"file://{store}", "--gap", str(GAP), "--json", *more)


def served(store: Path, directory: Path) -> list[tuple[int, bytes, bytes, int]]:
    """Return the records of a broker with a restored directory."""
    with Broker(settings(store), data_dir=str(directory)) as broker:
        return readable(broker)


def test_segments_that_are_newer_than_the_state_are_restored(lost: Lost, tmp_path: Path) -> None:
    store, directory = lost.copy(tmp_path), tmp_path / "data"
    for each in states(store)[1:]:
        each.unlink()
    states(store)[0].write_bytes(lost.early)
    done = restore(store, directory)
    assert (done.status, done.err) == (0, "")
    (found,) = [each for each in done.json["partitions"] if each["topic"] == TOPIC]
    assert found["remote_end"] > 300
    assert found["end"] == found["remote_end"] + GAP, "the state knows an earlier end than the objects"
    assert served(store, directory) == [each for each in lost.records if each[0] < found["remote_end"]]


def test_a_missing_object_is_told_and_the_others_are_restored(lost: Lost, tmp_path: Path) -> None:
    store, directory = lost.copy(tmp_path), tmp_path / "data"
    gone = sorted(store.glob("*/0/*"))[1]
    gone.unlink()
    done = restore(store, directory)
    assert done.status == 1
    (found,) = [each for each in done.json["partitions"] if each["topic"] == TOPIC]
    assert found["missing"] == [str(gone.relative_to(store))]
    with Broker(settings(store), data_dir=str(directory)) as broker:
        begin = int(sorted(store.glob("*/0/*"))[1].name[:20])
        expected = [each for each in lost.records if begin <= each[0] < found["remote_end"]]
        assert readable(broker, begin=begin) == expected


def test_a_cut_object_is_not_taken_for_a_segment(lost: Lost, tmp_path: Path) -> None:
    """A second copy of it is used; without one it is missing, also at the beginning of the partition."""
    store = lost.copy(tmp_path)
    first, second, *_ = sorted(store.glob("*/0/*"))
    name = parse_object_name(str(second.relative_to(store)))
    assert name is not None
    twin = replace(name, segment_id=os.urandom(16))

    async def copy() -> None:
        stored = await SegmentObject.open(open_store(f"file://{store}"), name.text(), name.segment_id)
        parts = {part: await stored.whole(part) for part in Part if stored.layout.lengths[part]}
        await write_segment(open_store(f"file://{store}"), twin.text(), twin.segment_id, parts)

    asyncio.run(copy())
    for each in (first, second):
        each.write_bytes(each.read_bytes()[:500])
    done = restore(store, tmp_path / "data")
    assert done.status == 1
    assert part_of(done.json)["missing"] == [str(first.relative_to(store))]
    assert f"{TOPIC}-0: {first.relative_to(store)} is missing or damaged" in done.err
    assert f"{second.relative_to(store)} has 500 bytes, and its record says another length" in done.err
    with Broker(settings(store), data_dir=str(tmp_path / "data")) as broker:
        begin = name.base_offset
        expected = [each for each in lost.records if begin <= each[0] < part_of(done.json)["remote_end"]]
        assert readable(broker, begin=begin) == expected
        until(lambda: tier_of(broker)["unfinished"] == 0)
        assert (store / twin.text()).exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("metadata", "part 0 has another CRC32C"),
        ("log", "part 1 has another CRC32C"),
        ("directory", "the directory has another CRC32C"),
    ],
)
def test_a_damaged_copy_gives_way_to_the_one_before(lost: Lost, tmp_path: Path, place: str, said: str) -> None:
    store = lost.copy(tmp_path)
    newest = states(store)[-1]
    data = bytearray(newest.read_bytes())
    metadata = re.search(rb'"metadata_bytes": (\d+)', data)
    assert metadata is not None
    data[{"metadata": 50, "log": int(metadata[1]) + 5, "directory": metadata.start()}[place]] ^= 1
    newest.write_bytes(data)
    done = restore(store, tmp_path / "data")
    assert done.status == 1
    assert f"{newest.relative_to(store)} in file://{store}: {said}" in done.err
    assert {each["topic"] for each in done.json["partitions"]} >= {TOPIC, "plain"}
    for each in states(store):
        each.write_bytes(b"junk")
    assert "no copy of the state" in restore(store, tmp_path / "other").err


def test_a_restore_chooses_no_cluster_and_overwrites_nothing(lost: Lost, tmp_path: Path) -> None:
    store = lost.copy(tmp_path)
    (first,) = (store / "broker-state").iterdir()
    shutil.copytree(first, store / "broker-state" / "another~2Fcluster")
    done = restore(store, tmp_path / "data")
    assert done.status == 1
    clusters = ", ".join(sorted([first.name, "another/cluster"]))
    assert f"has the state of several clusters: choose one of {clusters}" in done.err
    assert restore(store, tmp_path / "data", "--cluster-id", first.name).status == 0
    before = sorted(path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*"))
    again = restore(store, tmp_path / "data", "--cluster-id", first.name)
    assert (again.status, "is not empty: a restore needs a new directory" in again.err) == (1, True)
    assert sorted(path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no copy of the state" in restore(empty, tmp_path / "other").err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("failpoint", ["restore.own_topics", "restore.logs", "restore.snapshot", "restore.journal"])
def test_a_restore_that_is_killed(lost: Lost, tmp_path: Path, failpoint: str) -> None:
    """A broker refuses what a killed restore has left, and a second restore is complete."""
    store, directory = lost.copy(tmp_path), tmp_path / "data"
    command = [sys.executable, "-m", "kbroker", "log", "restore", str(directory), "--from", f"file://{store}"]
    killed = subprocess.run(
        command, env={**os.environ, VARIABLE: failpoint}, capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert killed.returncode == -signal.SIGKILL
    if failpoint != "restore.journal":  # then all is there
        with pytest.raises(LogDirError, match="is not completely restored: run `kbroker log restore` again"):
            Broker(settings(store), data_dir=str(directory)).start()
        assert restore(store, directory).status == 0
    found = served(store, directory)
    assert len(found) > 300
    assert found == lost.records[: len(found)]


def test_a_new_directory_beside_the_lost_one_is_not_taken_for_it(lost: Lost, tmp_path: Path) -> None:
    """A broker that was started with an empty directory neither displaces the lost one's state nor is restored."""
    store = lost.copy(tmp_path)
    kept = states(store)
    (cluster,) = (store / "broker-state").iterdir()
    (old,) = cluster.iterdir()
    log = tmp_path / "log"
    command = [sys.executable, "-m", "kbroker", "start", "--listen", "127.0.0.1:0", "--cluster-id", cluster.name]
    command += ["--data-dir", str(tmp_path / "empty")]
    for key, value in {**settings(store), **FAST}.items():
        command += ["--set", f"{key}={value}"]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output, stdout=output) as empty:
        try:
            until(lambda: b"copies of the state of other data directories of this cluster" in log.read_bytes())
        finally:
            empty.terminate()
    assert old.name.encode() in log.read_bytes()
    assert [each for each in states(store) if each.parent == old] == kept
    done = restore(store, tmp_path / "data")
    (new,) = {each.parent.name for each in states(store)} - {old.name}
    assert done.status == 1
    assert f"has the state of several data directories: choose one of {new} (newest copy" in done.err
    assert restore(store, tmp_path / "data", "--directory-id", old.name).status == 0
    assert served(store, tmp_path / "data")


def test_a_removed_copy_is_written_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker({**settings(store), **FAST}, data_dir=str(tmp_path / "data")) as broker:
        broker.topics.create("plain", partitions=1)
        until(lambda: states(store))
        assert oct((store / "broker-state").stat().st_mode & 0o777) == "0o700"
        for each in states(store):
            each.unlink()
        until(lambda: states(store))


def keep_state(store: Path, content: bytes) -> None:
    """Let the store have one state copy only, with an earlier content."""
    first, *others = states(store)
    for each in others:
        each.unlink()
    first.write_bytes(content)


def part_of(document: Any, topic: str = TOPIC, partition: int = 0) -> Any:
    (found,) = [each for each in document["partitions"] if (each["topic"], each["partition"]) == (topic, partition)]
    return found


def test_what_happened_after_the_state_copy(tmp_path: Path) -> None:
    """Deleted records stay deleted, new partitions come back, and offsets of empty partitions are not used again."""
    store, directory = tmp_path / "store", tmp_path / "new"
    with Broker({**settings(store), **FAST}, data_dir=str(tmp_path / "data")) as broker:
        create(broker)
        for name in ("plain", "quiet"):
            broker.topics.create(name, partitions=1)
        produce(broker, 0, 400)
        until(lambda: offset(broker, LOCAL) > 200)
        copied(broker, store)
        early = states(store)[-1].read_bytes()
        client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        client.delete_records([TopicPartition(TOPIC, 0, 150)])[TopicPartition(TOPIC, 0)].result(PATIENCE_S)
        client.create_partitions([NewPartitions(TOPIC, 2)])[TOPIC].result(PATIENCE_S)
        broker.topics.create("later", partitions=1, config=TIERED)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 6_000})
        for _ in range(300):
            for topic, partition in ((TOPIC, 1), ("later", 0)):
                producer.produce(topic, os.urandom(240), partition=partition)
        producer.produce("quiet", b"x")
        assert producer.flush(PATIENCE_S) == 0
        until(lambda: len([*store.glob("*/1/*")]) > 1 and len({each.parts[-3] for each in store.glob("*/0/*")}) > 1)
    keep_state(store, early)
    done = restore(store, directory)
    assert done.status == 0
    note = f"{TOPIC} gets 1 partitions that are newer than the copy of the state"
    assert (note in done.err, done.json["notes"]) == (True, [note])
    assert [each["objects"] > 0 for each in done.json["unknown_topics"]] == [True]
    assert part_of(done.json)["missing"] == []
    assert part_of(done.json, TOPIC, 1)["remote_end"] > 0
    assert part_of(done.json, "quiet")["end"] == GAP
    with Broker(settings(store), data_dir=str(directory)) as broker:
        begin = offset(broker, EARLIEST)
        assert 0 < begin <= 150
        assert readable(broker, begin=begin)[0][0] >= begin


def test_segments_that_were_copied_again_are_kept(tmp_path: Path) -> None:
    """The state names the first copies, which are deleted; the objects are the second copies."""
    store, directory = tmp_path / "store", tmp_path / "new"
    with Broker({**settings(store), **FAST}, data_dir=str(tmp_path / "data")) as broker:
        create(broker, local_retention_bytes="-2")
        broker.topics.create("plain", partitions=1)
        produce(broker, 0, 300)
        until(lambda: len([*store.glob("*/0/*")]) >= 3)
        copied(broker, store)
        early = states(store)[-1].read_bytes()
        first = len([*store.glob("*/0/*")])
        alter(broker, remote_storage_enable="false", remote_log_delete_on_disable="true")
        until(lambda: not [*store.glob("*/0/*")])
        alter(broker, remote_storage_enable="true", remote_log_delete_on_disable="false")
        until(lambda: len([*store.glob("*/0/*")]) >= first)
    keep_state(store, early)
    done = restore(store, directory)
    assert (done.status, part_of(done.json)["missing"]) == (0, [])
    end = part_of(done.json)["remote_end"]
    with Broker(settings(store), data_dir=str(directory)) as broker:
        assert [each[0] for each in readable(broker)] == list(range(end))
        before = sorted(store.glob("*/0/*"))
        produce(broker, 300, 10)
        until(lambda: tier_of(broker)["unfinished"] == 0)
        assert set(before) <= set(store.glob("*/0/*"))


def tier_of(broker: Broker) -> Any:
    """Return the tiers of the partition. Some values are None until the broker's first round has ended."""
    return CommandLine(broker.bootstrap_servers)("topic", "tiers", TOPIC, "--json").json[0]


def test_leader_epochs_that_are_newer_than_the_state(tmp_path: Path) -> None:
    """Each start after a crash begins a leader epoch. A restored partition must not begin an older one."""
    store, directory = tmp_path / "store", tmp_path / "new"
    with Broker({**settings(store), **FAST}, data_dir=str(tmp_path / "data")) as broker:
        create(broker, local_retention_bytes="0")
        broker.topics.create("plain", partitions=1)
        produce(broker, 0, 200)
        copied(broker, store)
        early = states(store)[-1].read_bytes()
    for begin in (200, 400, 600):
        (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
        with Broker(settings(store), data_dir=str(tmp_path / "data")) as broker:
            produce(broker, begin, 200)
            until(lambda begin=begin: offset_at(broker, TIERED_TO)[1] >= begin + 100)  # type: ignore[misc]
    keep_state(store, early)
    end = part_of(restore(store, directory).json)["remote_end"]
    assert end > 600
    for _ in range(2):
        with Broker(settings(store), data_dir=str(directory)) as broker:
            assert [each[0] for each in readable(broker)][:end] == list(range(end))
            produce(broker, 1000, 100)


def test_transactional_ids_whose_epochs_are_newer_than_the_state(tmp_path: Path) -> None:
    store, directory = tmp_path / "store", tmp_path / "new"
    with Broker({**settings(store), **FAST}, data_dir=str(tmp_path / "data")) as broker:
        create(broker, local_retention_bytes="0")
        broker.topics.create("plain", partitions=1)
        produce(broker, 0, 50, **{"transactional.id": "t"})
        copied(broker, store)
        early = states(store)[-1].read_bytes()
        for number in range(4):
            produce(broker, 50 + 100 * number, 100, **{"transactional.id": "t"})
        until(lambda: offset_at(broker, TIERED_TO)[1] > 300)
    keep_state(store, early)
    assert restore(store, directory).status == 0
    with Broker(settings(store), data_dir=str(directory)) as broker:
        for number in range(3):
            produce(broker, 1000 + number, 1, **{"transactional.id": "t"})
        assert len(readable(broker, "read_committed")) > 300

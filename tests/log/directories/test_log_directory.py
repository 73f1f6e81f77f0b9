"""The log directory: its lock, identity and checkpoints, and its periodic tasks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import uuid
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import checkpoints
from kbroker.log.append_info import AppendError
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import LogDirError, is_locked
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.log.log_state import FlushTask
from kbroker.long_work import turn
from kbroker.protocol.wire import parse_uuid
from tests.log.builders import NOW, batch, committed, offsets_of, read_all
from tests.turns import turns

TOPIC_ID = uuid.UUID(int=0x1234)
CONFIG = LogConfig(segment_bytes=500, file_delete_delay_ms=1000, flush_ms=5000)
MARK = ".kafka_cleanshutdown"


def manager(directory: Path, **kw: Any) -> LogDirectory:
    settings = {"node_id": 1, "cluster_id": "cluster", **kw}
    return LogDirectory(str(directory), **settings)


def loaded(directory: Path, **kw: Any) -> LogDirectory:
    logs = manager(directory, **kw)
    logs.load(lambda _topic: CONFIG, NOW)
    return logs


def crash(logs: LogDirectory) -> None:
    """Leave everything as after a kill."""
    logs._unlock()
    logs.logs = {}


def offsets(directory: Path, name: str) -> dict[tuple[str, int], int]:
    return checkpoints.read_offsets(str(directory / name))


def test_a_directory_and_its_files(tmp_path: Path) -> None:
    logs = loaded(tmp_path / "data")
    log = logs.get_or_create("topic-with-dash", 3, TOPIC_ID, CONFIG)
    assert logs.get_or_create("topic-with-dash", 3, TOPIC_ID, CONFIG) is log
    for _ in range(20):
        log.append_as_leader(batch(), 2, NOW)
    committed(log)
    logs.close()
    data = tmp_path / "data"
    properties = meta_properties.read_properties(str(data / "meta.properties"))
    assert properties is not None
    assert (properties["version"], properties["node.id"], properties["cluster.id"]) == ("1", "1", "cluster")
    assert parse_uuid(properties["directory.id"])
    assert json.loads((data / MARK).read_text()) == {"version": 0, "brokerEpoch": -1}
    assert (data / checkpoints.RECOVERY_POINTS).read_text() == "0\n1\ntopic-with-dash 3 20\n"
    assert (data / checkpoints.HIGH_WATERMARKS).read_text() == "0\n1\ntopic-with-dash 3 20\n"
    assert (data / checkpoints.LOG_STARTS).read_text() == "0\n0\n"
    partition = data / "topic-with-dash-3"
    assert (partition / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAASNA"
    assert (partition / "leader-epoch-checkpoint").read_text() == "0\n1\n2 0\n"
    logs = loaded(data)
    log = logs.logs["topic-with-dash", 3]
    assert (log.topic, log.partition, log.topic_id, log.high_watermark) == ("topic-with-dash", 3, TOPIC_ID, 20)
    assert offsets_of(read_all(log)) == list(range(20))
    total, usable = logs.disk_space()
    assert total >= usable > 0
    logs.close()


def test_s5_the_mark_is_there_only_between_clean_runs(tmp_path: Path) -> None:
    mark = tmp_path / MARK
    logs = manager(tmp_path)
    logs.open()
    assert not logs.was_clean
    logs.load(lambda _: CONFIG, NOW)
    assert not mark.exists()
    logs.close()
    assert mark.exists()
    logs = loaded(tmp_path)
    assert logs.was_clean
    assert not mark.exists()
    logs.close(clean=False)
    assert not mark.exists()
    logs = loaded(tmp_path)
    assert not logs.was_clean
    crash(logs)


def test_s5_bug_1_a_crash_while_loading_is_not_a_clean_stop(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    committed(logs.get_or_create("t", 0, TOPIC_ID, CONFIG)).append_as_leader(batch(), 0, NOW)
    logs.close()
    checkpointed = (tmp_path / checkpoints.RECOVERY_POINTS).read_text()

    def configs(_topic: str) -> LogConfig:
        raise RuntimeError("crash")

    logs = manager(tmp_path)
    with pytest.raises(RuntimeError):
        logs.load(configs, NOW)
    logs.close(clean=True)
    assert not (tmp_path / MARK).exists()
    assert (tmp_path / checkpoints.RECOVERY_POINTS).read_text() == checkpointed
    logs = loaded(tmp_path)
    assert not logs.was_clean
    assert logs.logs["t", 0].log_end_offset == 1
    logs.close()


def test_a_start_that_fails_before_loading_changes_nothing(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    logs.get_or_create("t", 0, TOPIC_ID, CONFIG).append_as_leader(batch(), 0, NOW)
    logs.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    logs = manager(tmp_path)
    logs.open()
    logs.close(clean=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    logs = loaded(tmp_path)
    assert logs.was_clean
    logs.close()


def test_s14_one_owner(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    with pytest.raises(LogDirError, match="in use"):
        loaded(tmp_path)
    logs.close()
    before = (tmp_path / "meta.properties").read_bytes()
    for wrong in ({"node_id": 2}, {"cluster_id": "other"}):
        with pytest.raises(LogDirError, match="belongs to"):
            loaded(tmp_path, **wrong)
        assert (tmp_path / "meta.properties").read_bytes() == before
        assert (tmp_path / MARK).exists()
    logs = loaded(tmp_path, cluster_id=None)
    assert logs.cluster_id == "cluster"
    logs.close()


def test_s14_a_directory_that_kafka_uses_is_refused(tmp_path: Path) -> None:
    """Java uses record locks, which flock does not see; each side must see the other's lock."""
    path = tmp_path / ".lock"
    path.touch()
    taken = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('taken')"
    )
    command = [sys.executable, "-c", f"{taken}; sys.stdout.flush(); sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kafka:
        assert kafka.stdout is not None
        assert kafka.stdout.readline() == b"taken\n"
        assert is_locked(str(tmp_path))
        with pytest.raises(LogDirError, match="in use"):
            loaded(tmp_path)
        kafka.communicate(timeout=60)
    assert not is_locked(str(tmp_path))
    logs = loaded(tmp_path)
    assert is_locked(str(tmp_path))
    done = subprocess.run([sys.executable, "-c", taken, str(path)], capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert b"taken" not in done.stdout
    logs.close()
    assert not is_locked(str(tmp_path))


def test_s14_directories_of_older_kafka(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("#\n#Mon\nversion=0\nbroker.id=1\ncluster.id=abc\n")
    logs = loaded(tmp_path, cluster_id=None)
    assert logs.cluster_id == "abc"
    logs.close()
    # A broker on ZooKeeper refuses any other version.
    kept = meta_properties.read_properties(str(tmp_path / "meta.properties")) or {}
    assert kept.pop("directory.id")
    assert kept == {"version": "0", "broker.id": "1", "cluster.id": "abc"}
    (tmp_path / "meta.properties").write_text("version=7\nnode.id=1\ncluster.id=abc\n")
    with pytest.raises(LogDirError, match="version '7'"):
        loaded(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0",
        b"node.id=1\ncluster.id=abc\n",
        b"version=1\ncluster.id=abc\n",
        b"version=1\nnode.id=one\ncluster.id=abc\n",
        b"version=1\nnode.id=1\n",
        b"version=1\nnode.id=1\ncluster.id=abc\ndirectory.id=abc\n",
        None,
    ],
)
def test_s14_a_damaged_or_lost_identity_is_not_replaced(tmp_path: Path, content: bytes | None) -> None:
    """One line names the file and the repair, which works; nothing is changed before the repair."""
    logs = loaded(tmp_path)
    logs.get_or_create("t", 0, None, LogConfig())
    logs.close()
    path = tmp_path / "meta.properties"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(LogDirError) as caught:
        loaded(tmp_path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    assert "write the lines version=1, node.id=1 and cluster.id=" in said
    assert path.exists() == (content is not None)
    path.write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    again = loaded(tmp_path, cluster_id="abc")
    assert ("t", 0) in again.logs
    again.close()


@pytest.mark.parametrize(
    "content", [b"", b"1\n0\n", b"0\n5\nt 0 1\n", b"\xff\xfe", b"0\nx\n", b"0\n1\nt 0 99999\n", b"0\n1\nt 0 -4\n"]
)
def test_s6_unreadable_checkpoints(tmp_path: Path, content: bytes) -> None:
    logs = loaded(tmp_path)
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    crash(logs)
    for name in (checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
        (tmp_path / name).write_bytes(content)
    if b"99999" not in content:  # a start beyond the end means that all records were deleted
        (tmp_path / checkpoints.LOG_STARTS).write_bytes(content)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_bytes(content)
    logs = loaded(tmp_path)
    log = logs.logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    assert 0 <= log.high_watermark <= 10
    assert log.leader_epochs.entries == [(0, 0)]
    crash(logs)


def test_s7_the_high_watermark_survives_a_crash(tmp_path: Path) -> None:
    """Bug 23: the broker is killed twice during its start."""
    logs = loaded(tmp_path)
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    log.append_as_leader(batch(5), 0, NOW)
    log.set_high_watermark(5)
    logs.tick(NOW + 5000)
    logs._flusher.close(NOW + 5000)  # waits for the thread that writes it
    for _ in range(2):
        crash(logs)
        logs = loaded(tmp_path)
    assert logs.logs["t", 0].high_watermark == 5
    crash(logs)


def test_s8_the_log_start_survives(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    log.append_as_leader(batch(5), 0, NOW)
    committed(log).advance_log_start(3)
    logs.checkpoint()
    crash(logs)
    for _ in range(2):
        logs = loaded(tmp_path)
        assert logs.logs["t", 0].log_start_offset == 3
        logs.close()


def test_deleting_a_partition(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    log.append_as_leader(batch(5), 0, NOW)
    piece = log.read(0, 1 << 20, 5, min_one=True)
    logs.delete_all([("t", 0)], NOW)
    logs.delete_all([("t", 1)], NOW)
    assert len(piece.view()) == len(piece)
    renamed = [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert len(renamed) == 1
    assert renamed[0].startswith("t-0.")
    assert renamed[0].endswith("-delete")
    again = logs.get_or_create("t", 0, uuid.UUID(int=9), CONFIG)
    assert again.log_end_offset == 0, "R18: the same name never shows old data"
    logs.tick(NOW + 999)
    assert len(list(tmp_path.glob("*-delete"))) == 1
    logs.tick(NOW + 1000)
    assert not list(tmp_path.glob("*-delete"))
    crash(logs)
    (tmp_path / f"t-0.{'0' * 32}-delete").mkdir()
    logs = loaded(tmp_path)
    logs.tick(NOW)
    assert not list(tmp_path.glob("*-delete"))
    assert set(logs.logs) == {("t", 0)}
    logs.close()


def test_long_topic_names_can_be_deleted(tmp_path: Path) -> None:
    logs = loaded(tmp_path)
    name = "x" * 249
    logs.get_or_create(name, 12, TOPIC_ID, CONFIG)
    logs.delete_all([(name, 12)], NOW)
    assert len(list(tmp_path.glob("*-delete"))) == 1
    logs.close()


@pytest.mark.long
def test_tick_applies_retention_and_flushes(tmp_path: Path) -> None:
    logs = loaded(tmp_path, retention_check_interval_ms=100, flush_check_interval_ms=50)
    config = LogConfig(segment_bytes=300, retention_bytes=600, file_delete_delay_ms=100, flush_ms=200)
    all_logs = [logs.get_or_create("t", partition, TOPIC_ID, config, NOW) for partition in range(150)]
    for log in all_logs:
        for _ in range(15):
            log.append_as_leader(batch(), 0, NOW)
        committed(log)
    for step in range(40):
        logs.tick(NOW + step * 25)
        logs._flusher.close(NOW + step * 25)
    assert all(log.log_start_offset > 0 for log in all_logs)
    assert all(log.recovery_point == 15 for log in all_logs)
    assert not list(tmp_path.glob("*/*.deleted"))
    logs.close()
    assert set(offsets(tmp_path, checkpoints.RECOVERY_POINTS).values()) == {15}


def test_what_is_old_at_the_start_goes_after_the_initial_delay(tmp_path: Path) -> None:
    """What is already old at the start is deleted after log.initial.task.delay.ms, which is shorter."""
    logs = loaded(tmp_path, initial_delay_ms=1_000)
    log = logs.get_or_create("t", 0, TOPIC_ID, LogConfig(segment_bytes=100, retention_bytes=0), NOW)
    for _ in range(2):
        log.append_as_leader(batch(), 0, NOW)
    committed(log)
    logs.tick(NOW + 999)
    assert (log.log_start_offset, offsets(tmp_path, checkpoints.HIGH_WATERMARKS)) == (0, {})
    logs.tick(NOW + 1_000)
    assert log.log_start_offset == 2
    logs._flusher.close(NOW)
    assert offsets(tmp_path, checkpoints.HIGH_WATERMARKS) == {("t", 0): 2}
    logs.close()


def test_a_flush_that_came_to_no_end_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_task: FlushTask) -> None:
        raise MemoryError

    run = FlushTask.run
    monkeypatch.setattr(FlushTask, "run", failing)
    logs = loaded(tmp_path)
    log = logs.get_or_create("topic", 0, TOPIC_ID, CONFIG, NOW)
    log.append_as_leader(batch(), 0, NOW)
    logs._flusher.submit(log)
    logs._flusher.close(NOW)
    assert log.recovery_point == 0
    monkeypatch.setattr(FlushTask, "run", run)
    logs._flusher.submit(log)
    logs._flusher.close(NOW)
    assert log.recovery_point == 1
    logs.close()


def test_one_partitions_trouble_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = loaded(tmp_path, retention_check_interval_ms=10)
    config = LogConfig(segment_bytes=100, retention_bytes=0)
    bad = logs.get_or_create("a", 0, TOPIC_ID, config, NOW)
    good = logs.get_or_create("b", 0, TOPIC_ID, config, NOW)
    for log in (bad, good):
        log.append_as_leader(batch(), 0, NOW)
        log.append_as_leader(batch(), 0, NOW)
        committed(log)
    os.chmod(bad.directory, 0o500)
    rename = os.rename

    def refuse(old: str, new: str) -> None:
        if "/a-0/" in old:
            raise OSError(5, "broken")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    logs.tick(NOW + 10)
    assert good.log_start_offset == 2
    os.chmod(bad.directory, 0o700)
    crash(logs)


def test_log_config_from_kafkas_names() -> None:
    config = LogConfig.from_map(
        {
            "cleanup.policy": "compact, delete",
            "segment.bytes": "1048576",
            "min.cleanable.dirty.ratio": "0.25",
            "preallocate": "TRUE",
            "message.timestamp.type": "LogAppendTime",
            "follower.replication.throttled.replicas": "*",
        }
    )
    assert (config.compact, config.delete, config.segment_bytes) == (True, True, 1048576)
    assert (config.min_cleanable_dirty_ratio, config.preallocate, config.log_append_time) == (0.25, True, True)
    assert LogConfig.from_map({}) == LogConfig()
    assert LogConfig.from_map({"segment.bytes": "1048576", "internal.segment.bytes": "100"}).segment_bytes == 100
    for key, value in (("segment.bytes", "1k"), ("preallocate", "yes"), ("min.cleanable.dirty.ratio", "")):
        with pytest.raises(ValueError, match=key):
            LogConfig.from_map({key: value})


def test_work_that_brings_more_work_does_not_keep_the_chores_from_their_turn(tmp_path: Path) -> None:
    """The work is like a log's that rolls again and again while its many producers are written to a snapshot."""
    logs = loaded(tmp_path / "data")
    begun = 0

    async def again() -> None:
        nonlocal begun
        begun += 1
        await turn
        logs.do_later(again)

    logs.do_later(again)
    for ticks in range(1, 4):
        for _ in islice(turns(logs.due(NOW)), 1000):
            pass
        assert begun == ticks
    logs.close()


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_full_disk_is_a_failure_where_others_can_take_over(tmp_path: Path, in_cluster: bool) -> None:
    logs = loaded(tmp_path / "data", in_cluster=in_cluster)
    failed: list[LogDirectory] = []
    logs.on_failure = failed.append
    logs.report(OSError(errno.EMFILE, "too many open files"))
    assert not logs.failure
    logs.report(OSError(errno.ENOSPC, "no space left"))
    assert bool(logs.failure) is in_cluster
    assert failed == [logs] * in_cluster
    logs.close()


def test_holes_that_a_leaders_log_has_are_no_damage_at_the_next_start(tmp_path: Path) -> None:
    """The leader's log was compacted at some time; this broker only copies it, with a policy that deletes."""
    logs = loaded(tmp_path / "data")
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    for offset in (0, 2, 4):
        copied = bytearray(batch())
        copied[:8] = offset.to_bytes(8, "big")
        log.append_as_follower(memoryview(copied), NOW)
    crash(logs)
    again = loaded(tmp_path / "data")
    assert not again.was_clean
    log = again.logs["t", 0]
    assert offsets_of(read_all(log)) == [0, 2, 4]
    assert log.may_have_holes
    crash(again)
    assert loaded(tmp_path / "data").logs["t", 0].log_end_offset == 5


def test_no_hole_is_taken_that_the_next_start_would_not_know_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = loaded(tmp_path / "data")
    log = logs.get_or_create("t", 0, TOPIC_ID, CONFIG)
    copied = bytearray(batch())
    copied[:8] = (2).to_bytes(8, "big")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints.CheckpointFile, "put", full)
    with pytest.raises(AppendError, match="space"):
        log.append_as_follower(memoryview(copied), NOW)
    assert (log.log_end_offset, log.may_have_holes) == (0, False)
    monkeypatch.undo()
    log.append_as_follower(memoryview(copied), NOW)
    assert (log.log_end_offset, log.may_have_holes) == (3, True)

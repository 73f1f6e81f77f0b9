"""Threads create the files of new partitions ahead, so the event loop never waits for the file system's journal."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest

from kbroker.log.directories import log_manager, partition_dir_names
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dir_names import NewPartition
from kbroker.log.log_config import LogConfig
from tests.log.builders import NOW, batch
from tests.own_thread import in_this_thread

TOPIC_ID = uuid.UUID(int=7)


def dirs_of(tmp_path: Path, count: int = 1) -> LogManager:
    managers = [LogDirectory(str(tmp_path / str(n)), node_id=0, cluster_id="cluster") for n in range(count)]
    dirs = LogManager(managers, managers[0].directory)
    dirs.open()
    dirs.load(lambda _topic: LogConfig(), NOW, lambda _topic, _partition, _id: True)
    return dirs


def ahead(dirs: LogManager, *indexes: int) -> None:
    for each in dirs.make_ahead([NewPartition(("t", index), TOPIC_ID) for index in indexes]):
        dirs.offer(each.result(60))


def files_of(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_what_was_made_ahead_is_what_a_log_makes_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = dirs_of(tmp_path)
    dirs.get_or_create("t", 0, TOPIC_ID, LogConfig(), NOW)
    makers = set()
    made = os.mkdir
    monkeypatch.setattr(
        os, "mkdir", lambda *rest, **kw: (makers.add(threading.current_thread().name), made(*rest, **kw))
    )
    ahead(dirs, *range(1, 40))
    assert makers
    assert all(name.startswith("kbroker-make") for name in makers)
    (path,) = tmp_path.glob("0/t-1.*-delete")
    assert files_of(path) == files_of(tmp_path / "0" / "t-0")
    opened = os.open

    def makes_none(path: str, flags: int, *rest: int) -> int:
        assert not flags & os.O_CREAT or os.path.exists(path), path
        return opened(path, flags, *rest)

    def refuses(path: str, to: str) -> None:
        raise AssertionError(f"{path} is put in the place of {to}")

    monkeypatch.setattr(os, "open", in_this_thread(makes_none, opened))
    monkeypatch.setattr(os, "replace", in_this_thread(refuses, os.replace))
    for index in range(1, 40):
        assert dirs.get_or_create("t", index, TOPIC_ID, LogConfig(), NOW).topic_id == TOPIC_ID
    monkeypatch.undo()
    log = dirs.get_or_create("t", 7, TOPIC_ID, LogConfig(), NOW)
    log.append_as_leader(bytearray(batch()), 0, NOW)
    assert log.log_end_offset == 1
    dirs.close()
    dirs = dirs_of(tmp_path)
    assert dirs.get_or_create("t", 7, TOPIC_ID, LogConfig(), NOW).log_end_offset == 1
    dirs.close()


def test_each_is_made_where_it_is_looked_for_then(tmp_path: Path) -> None:
    dirs = dirs_of(tmp_path, 3)
    ahead(dirs, *range(30))
    for index in range(30):
        dirs.get_or_create("t", index, TOPIC_ID, LogConfig(), NOW)
    assert Counter(each.parent.name for each in tmp_path.glob("*/t-*")) == {"0": 10, "1": 10, "2": 10}
    dirs.close()


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    dirs = dirs_of(tmp_path)
    (tmp_path / "0" / "t-3").mkdir()
    (tmp_path / "0" / "t-3" / "mine").write_text("x")
    ahead(dirs, 3)
    assert files_of(tmp_path / "0" / "t-3") == {"mine": b"x"}
    dirs.close()


def test_what_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = dirs_of(tmp_path)

    def fail(_directory: str, _topic_id: uuid.UUID) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partition_dir_names.checkpoints, "write_topic_id", fail)
    ahead(dirs, 1, 2)
    assert list(tmp_path.glob("0/t-*")) == []
    monkeypatch.undo()
    assert dirs.get_or_create("t", 1, TOPIC_ID, LogConfig(), NOW).topic_id == TOPIC_ID
    dirs.close()


def gone(dirs: LogManager, tmp_path: Path) -> None:
    deadline = time.monotonic() + 60
    while list(tmp_path.glob("*/t-*")):  # a thread removes it
        assert time.monotonic() < deadline
        dirs.tick(NOW + 3_600_000)


def test_what_nobody_takes_is_never_seen_and_goes(tmp_path: Path) -> None:
    """A LeaderAndIsr is refused after its files were made: the topic was deleted, or recreated with another id."""
    dirs = dirs_of(tmp_path)
    (job,) = dirs.make_ahead([NewPartition(("t", 1), TOPIC_ID)])
    made = job.result(60)
    dirs.offer(made)
    dirs.withdraw(made)
    assert not (tmp_path / "0" / "t-1").exists()
    gone(dirs, tmp_path)
    dirs.close()


def test_what_was_made_for_another_topic_of_the_name_is_not_taken(tmp_path: Path) -> None:
    dirs = dirs_of(tmp_path)
    ahead(dirs, 1)
    other = uuid.UUID(int=8)
    assert dirs.get_or_create("t", 1, other, LogConfig(), NOW).topic_id == other
    ahead(dirs, 1)  # now it exists
    assert len(list(tmp_path.glob("0/t-1"))) == 1
    dirs.close()


def test_a_stop_waits_for_one_partition_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = dirs_of(tmp_path)
    count, going, on = 0, threading.Event(), threading.Event()

    def slow(_directory: str, _new: NewPartition) -> None:
        nonlocal count
        count += 1
        going.set()
        assert on.wait(60)

    monkeypatch.setattr(log_manager, "make_ahead", slow)
    dirs.make_ahead([NewPartition(("t", index), TOPIC_ID) for index in range(400)])
    assert going.wait(60)
    threading.Timer(0.1, on.set).start()
    dirs.close()
    assert count <= 8


def test_what_a_crash_left_half_made_is_gone_with_the_next_start(tmp_path: Path) -> None:
    dirs = dirs_of(tmp_path)
    ahead(dirs, 1)
    left = [each.name for each in tmp_path.glob("0/t-*")]
    assert len(left) == 1
    assert left[0].endswith("-delete")
    dirs.close()
    dirs = dirs_of(tmp_path)
    assert ("t", 1) not in dirs
    gone(dirs, tmp_path)
    dirs.close()

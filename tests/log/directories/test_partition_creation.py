"""Partitions are created together cheaply, and a partition whose topic id was lost gets it back."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from pathlib import Path

import pytest

from kbroker.log.directories import log_directory
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.protocol.records import build_batch
from tests.crash.power import Power
from tests.own_thread import in_this_thread

NOW = 1_700_000_000_000


def manager(directory: Path) -> LogDirectory:
    logs = LogDirectory(str(directory), node_id=1, cluster_id="c" * 22)
    logs.load(lambda _topic: LogConfig(), NOW)
    return logs


def test_a_lost_topic_id_is_written_again(tmp_path: Path) -> None:
    topic_id = uuid.uuid4()
    logs = manager(tmp_path)
    logs.get_or_create("t", 0, topic_id, LogConfig(), NOW)
    logs.close(True, NOW)
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"")
    logs = manager(tmp_path)
    assert logs.logs["t", 0].topic_id is None
    assert logs.get_or_create("t", 0, topic_id, LogConfig(), NOW).topic_id == topic_id
    logs.close(True, NOW)
    logs = manager(tmp_path)
    assert logs.logs["t", 0].topic_id == topic_id
    logs.close(True, NOW)


def test_creating_many_partitions_forces_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = manager(tmp_path)
    forced = []
    real = os.fsync

    def fsync(fd: int) -> None:
        forced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fsync", in_this_thread(fsync, real))
    for index in range(50):
        log = logs.get_or_create("t", index, uuid.uuid4(), LogConfig(), NOW)
        log.leader_epochs.assign(0, 0)
    assert forced == []
    monkeypatch.undo()
    logs.close(True, NOW)


def test_the_directory_is_brought_to_the_disk_by_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = manager(tmp_path)
    by: list[str] = []
    gate = threading.Event()

    def failing(_path: str) -> None:
        by.append(threading.current_thread().name)
        assert gate.wait(10)
        raise OSError(errno.EIO, "a disk")

    monkeypatch.setattr(log_directory, "sync_directory", failing)
    failed: list[object] = []
    logs.on_failure = failed.append
    logs.sync()
    logs.tick(NOW)
    assert failed == []
    gate.set()
    deadline = time.monotonic() + 10
    while not failed:
        assert time.monotonic() < deadline
        logs.tick(NOW)
    assert by[0].startswith("kbroker-flush")
    monkeypatch.undo()
    logs.close(False, NOW)


def test_what_is_flushed_is_found_after_a_loss_of_power_though_the_thread_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flush.messages=1, an append also brings the name of its new log's directory to the disk (S12)."""
    (tmp_path / "data").mkdir()
    power, gate = Power(tmp_path / "data"), threading.Event()
    with power.watched(monkeypatch):
        logs = manager(tmp_path / "data")
        logs.flusher.pool.submit(gate.wait, 10)  # another log's flush, on a disk that is busy
        log = logs.get_or_create("t", 0, uuid.uuid4(), LogConfig(flush_messages=1), NOW)
        logs.sync()
        log.append_as_leader(build_batch([(NOW, None, b"acknowledged", ())]), 0, NOW)
        power.after_power_loss(tmp_path / "survivor")
        gate.set()
        logs.close(True, NOW)
    logs = manager(tmp_path / "survivor")
    assert [(key, log.log_end_offset) for key, log in logs.logs.items()] == [(("t", 0), 1)]
    logs.close(True, NOW)

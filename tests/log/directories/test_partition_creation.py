"""Partitions created together are cheap, and one whose topic id was lost gets it back."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
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


def test_creating_many_partitions_forces_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    logs.sync()
    assert len(forced) == 1
    monkeypatch.undo()
    logs.close(True, NOW)

"""Checkpoint entries for partitions that are deleted, recreated or moved while the checkpoints are gathered."""

from __future__ import annotations

import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from kbroker.log import checkpoints
from kbroker.log.directories import checkpointer, log_directory
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.invariants import log_class
from kbroker.log.log_config import LogConfig
from kbroker.log.log_state import LogHost
from kbroker.long_work import step, whole
from tests.log.builders import NOW, batch, committed, offsets_of, read_all

LATER = NOW + 1_000_000
CONFIG = LogConfig()


def opened(directory: Path) -> LogDirectory:
    logs = LogDirectory(str(directory), node_id=1, cluster_id="cluster")
    logs.load(lambda _topic: CONFIG, NOW)
    return logs


def killed(logs: LogDirectory) -> None:
    logs._unlock()
    logs._flusher.close(LATER)
    logs.logs.clear()


def old_and_new(logs: LogDirectory, name: str, *, steps: int) -> bool:
    """Delete a topic and recreate it after `steps` steps of the due work; return whether there were as many."""
    log = logs.get_or_create(name, 0, uuid.UUID(int=1), CONFIG, NOW)
    for _ in range(10):
        log.append_as_leader(batch(), 0, NOW)
    committed(log).advance_log_start(9, NOW)
    logs.get_or_create("other", 0, uuid.UUID(int=2), CONFIG, NOW)
    work: Coroutine[Any, Any, None] = logs.due(LATER)
    for _ in range(steps):
        if step(work):
            return False
    logs.delete_all([(name, 0)], LATER)
    log = logs.get_or_create(name, 0, uuid.UUID(int=3), CONFIG, LATER)
    for _ in range(5):
        log.append_as_leader(batch(), 0, NOW)
    committed(log)
    whole(work)
    return True


def test_a_new_topic_has_nothing_of_a_deleted_one_of_its_name_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_ENTRIES_AT_ONCE", 1)
    steps = 0
    while True:
        directory = tmp_path / str(steps)
        logs = opened(directory)
        there_were = old_and_new(logs, "topic", steps=steps)
        killed(logs)
        if not there_were:
            break
        assert checkpoints.read_offsets(str(directory / checkpoints.LOG_STARTS)) == {}, steps
        logs = opened(directory)
        assert offsets_of(read_all(logs.logs["topic", 0])) == [0, 1, 2, 3, 4], steps
        logs.close()
        steps += 1
    assert steps > 6


def test_a_new_topic_is_not_taken_for_one_that_was_compacted_after_a_crash(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    logs.get_or_create("topic", 0, uuid.UUID(int=1), CONFIG, NOW)
    logs.cleaner.note(("topic", 0), 0)
    logs.delete_all([("topic", 0)], NOW)
    logs.get_or_create("topic", 0, uuid.UUID(int=2), CONFIG, NOW)
    assert checkpoints.read_offsets(str(tmp_path / checkpoints.CLEANER_OFFSETS)) == {}
    killed(logs)


def test_a_partition_that_moves_in_keeps_its_directory_where_one_of_its_name_is_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_directory, "AT_ONCE", 0)
    logs = opened(tmp_path)
    logs.get_or_create("topic", 0, uuid.UUID(int=1), CONFIG, NOW)
    logs.delete_all([("topic", 0)], NOW)
    future = Path(logs.future_path("topic", 0))
    future.mkdir()
    moved = log_class()(
        str(future), "topic", 0, CONFIG, now_ms=NOW, topic_id=uuid.UUID(int=2), host=LogHost(files=logs.files)
    )
    logs.take_over(moved)
    moved.append_as_leader(batch(3), 0, NOW)
    logs.tick(NOW)
    logs.tick(LATER)
    assert Path(moved.directory).is_dir()
    assert offsets_of(read_all(committed(moved))) == [0, 1, 2]
    logs.close()


def test_what_was_deleted_twice_is_forgotten_twice(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    key = ("topic", 0)
    logs.get_or_create(*key, uuid.UUID(int=1), CONFIG, NOW)
    logs.delete_all([key], NOW)
    whole(logs.due(NOW))  # the entries of the first topic are being forgotten
    second = logs.get_or_create(*key, uuid.UUID(int=2), CONFIG, NOW)
    for _ in range(5):
        second.append_as_leader(batch(), 0, NOW)
    committed(second).advance_log_start(4, NOW)
    logs.checkpoint()
    logs.delete_all([key], NOW)
    logs._flusher.pool.submit(int).result()  # earlier entries have been written
    logs._checkpointer.settle_forgotten()
    logs.get_or_create(*key, uuid.UUID(int=3), CONFIG, NOW)
    assert checkpoints.read_offsets(str(tmp_path / checkpoints.LOG_STARTS)) == {}
    killed(logs)

"""When the checkpoints of a directory are written, and of which logs."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from kbroker.log.directories.checkpointer import Checkpointer
from kbroker.log.directories.flusher import Flusher
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import step, whole
from tests.log.builders import NOW, batch, open_log

KEY = ("t", 0)
HIGH_WATERMARKS = "replication-offset-checkpoint"


class Cleaned:
    """The cleaner's checkpoint, which records how often it is written, and whether synchronously."""

    def __init__(self) -> None:
        self.saved: list[str] = []

    def save(self) -> None:
        self.saved.append("now")

    def save_by_thread(self) -> Future[None]:
        self.saved.append("by a thread")
        done: Future[None] = Future()
        done.set_result(None)
        return done


class World:
    """A directory with one log that contains ten records."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: PartitionLog = open_log(directory / "t-0")
        self.log.append_as_leader(batch(10), 0, NOW)
        self.log.set_high_watermark(10)
        self.logs = {KEY: self.log}
        self.flusher = Flusher()
        self.in_use = True
        self.reported: list[OSError] = []
        self.cleaned = Cleaned()
        self.checkpointer = Checkpointer(
            str(directory),
            self.logs,
            self.flusher,
            self.cleaned,
            self.reported.append,
            in_use=lambda: self.in_use,
            recovery_point_interval_ms=60_000,
            log_start_interval_ms=60_000,
            high_watermark_interval_ms=5_000,
        )
        self.checkpointer.start(NOW, 30_000)

    def files(self) -> list[str]:
        """Wait for the thread; return the existing checkpoints."""
        self.flusher.close(NOW)
        return sorted(path.name for path in self.directory.glob("*-offset-checkpoint"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_each_is_written_when_it_is_due(world: World) -> None:
    whole(world.checkpointer.write_due(NOW + 4_999))
    assert world.files() == []
    whole(world.checkpointer.write_due(NOW + 5_000))
    assert world.files() == [HIGH_WATERMARKS]
    assert world.checkpointer.read() == ({}, {}, {KEY: 10})
    whole(world.checkpointer.write_due(NOW + 60_000))
    assert len(world.files()) == 3
    assert world.checkpointer.read().keys == {KEY}


def test_nothing_is_written_once_the_directory_is_out_of_use(world: World) -> None:
    steps = world.checkpointer.write_due(NOW + 60_000)
    steps.send(None)
    world.in_use = False
    world.logs.clear()
    assert step(steps)
    assert world.files() == []


def test_a_log_that_leaves_meanwhile_is_not_written(world: World) -> None:
    steps = world.checkpointer.write_due(NOW + 5_000)
    steps.send(None)
    world.logs.clear()
    assert step(steps)
    assert world.files() == [HIGH_WATERMARKS]
    assert world.checkpointer.read().keys == set()


def test_a_deleted_name_is_gone_from_the_disk_before_it_is_given_again(world: World) -> None:
    world.checkpointer.write_all()
    world.checkpointer.forget(KEY)
    assert world.checkpointer.read().high_watermarks == {KEY: 10}, "it was not deleted"
    del world.logs[KEY]
    world.checkpointer.deleted(KEY, was_cleaned=False)
    world.checkpointer.forget(KEY)
    assert world.checkpointer.read().keys == set()


def test_what_a_thread_has_written_need_not_be_written_again(world: World) -> None:
    world.checkpointer.write_all()
    del world.logs[KEY]
    world.checkpointer.deleted(KEY, was_cleaned=False)
    whole(world.checkpointer.forget_deleted())
    world.flusher.close(NOW)
    world.checkpointer.settle_forgotten()
    assert world.checkpointer.read().keys == set()
    (world.directory / HIGH_WATERMARKS).unlink()
    world.checkpointer.forget(KEY)
    assert HIGH_WATERMARKS not in world.files()


def test_what_the_cleaner_keeps_is_saved_once_and_only_where_it_knew_the_name(world: World) -> None:
    del world.logs[KEY]
    world.checkpointer.deleted(KEY, was_cleaned=False)
    whole(world.checkpointer.forget_deleted())
    assert world.cleaned.saved == []
    world.checkpointer.deleted(KEY, was_cleaned=True)
    world.checkpointer.deleted(("t", 1), was_cleaned=False)
    whole(world.checkpointer.forget_deleted())
    whole(world.checkpointer.forget_deleted())
    assert world.cleaned.saved == ["by a thread"]
    world.checkpointer.forget(KEY)
    assert world.cleaned.saved == ["by a thread", "now"], "what a thread writes may not be on the disk yet"

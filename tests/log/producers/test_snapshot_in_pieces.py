"""A snapshot of many producers is taken in pieces: it shows their state at the roll, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.log import partition_log
from kbroker.log.files import sync_directory
from kbroker.log.log_config import LogConfig
from kbroker.log.log_state import Work
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers import producer_snapshots
from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.long_work import whole
from tests.crash.power import Power
from tests.log.builders import HOUR, NOW, batch, committed, delete_due, open_log, purge
from tests.own_thread import in_this_thread
from tests.turns import turns

PRODUCERS = 2000
SEED = 20261122


class World:
    """A log with many producers, and its deferred work."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.later: deque[Work] = deque()
        self.log = open_log(directory, later=self.later.append)
        self.sequences = dict.fromkeys(range(PRODUCERS), 0)
        for producer in self.sequences:
            self.produce(producer)

    def produce(self, producer: int) -> None:
        sequence = self.sequences.setdefault(producer, 0)
        raw = batch(producer_id=producer, producer_epoch=0, base_sequence=sequence, timestamp=NOW + sequence)
        self.log.append_as_leader(raw, 0, NOW)
        self.sequences[producer] += 1

    def roll(self) -> int:
        self.log.roll(NOW)
        return self.log.log_end_offset

    def copied(self, name: str) -> Path:
        """Return a copy of the directory, in the state after a crash."""
        target = self.directory.with_name(name)
        shutil.copytree(self.directory, target)
        return target

    def content(self, offset: int) -> list[ProducerEntry]:
        return decode_snapshot((self.directory / f"{offset:020d}.snapshot").read_bytes())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "topic-0")


def known(entries: list[ProducerEntry]) -> dict[int, tuple[int, int, int]]:
    """Return the contents of a snapshot, by producer id."""
    return {e.producer_id: (e.last_sequence, e.batches[-1].last_offset, e.last_timestamp) for e in entries}


def test_it_tells_what_was_at_the_roll(world: World) -> None:
    rng = random.Random(SEED)
    offset = world.roll()
    expected = known(world.log.active_producers())
    pieces = 0
    for _ in turns(world.later.popleft()()):
        pieces += 1
        for _ in range(20):
            world.produce(rng.randrange(2 * PRODUCERS))
        if pieces == 3:
            world.log.expire_producers(NOW + HOUR, HOUR)  # producers that have been silent since the first second
    assert pieces >= PRODUCERS // 256
    assert known(world.content(offset)) == expected
    assert world.log.producers.taking is None
    assert not list(world.directory.glob("*.tmp"))


def test_few_producers_are_written_at_once(tmp_path: Path) -> None:
    later: list[Work] = []
    log = open_log(tmp_path / "topic-0", later=later.append)
    log.append_as_leader(batch(producer_id=1, producer_epoch=0, base_sequence=0), 0, NOW)
    log.roll(NOW)
    assert not later
    assert (tmp_path / "topic-0" / f"{1:020d}.snapshot").exists()


def test_a_roll_during_a_snapshot_takes_none(world: World) -> None:
    first = world.roll()
    taking = world.later.popleft()()
    taking.send(None)
    world.produce(0)
    world.roll()
    assert not world.later
    world.produce(0)
    caught_up = world.log.log_end_offset
    expected = known(world.log.active_producers())
    whole(taking)
    assert world.log._snapshots.offsets == [first]
    world.produce(0)
    whole(world.later.popleft()())
    assert world.log._snapshots.offsets == [first, caught_up], "what rolled meanwhile is behind one, too"
    assert known(world.content(caught_up)) == expected
    assert not world.later
    world.produce(0)
    second = world.roll()
    whole(world.later.popleft()())
    assert world.log._snapshots.offsets == [first, caught_up, second]
    world.log.flush(NOW)
    assert world.log._snapshots.offsets == [first, second], "one that is at no segment's base goes with the next"


@pytest.mark.parametrize("steps", [0, 1, 5, None])
def test_a_crash_on_the_way_loses_no_producer(world: World, steps: int | None) -> None:
    for offset in range(2):
        world.roll()
        if offset == 0:
            whole(world.later.popleft()())
            world.produce(1)
    taking = world.later.popleft()()
    for _ in range(steps or 0):
        taking.send(None)
    if steps is None:
        whole(taking)
    world.produce(2)
    expected = known(world.log.active_producers())
    world.log.segments.release()  # a crash: nothing more is written
    again = open_log(world.directory, clean=False)
    assert known(again.active_producers()) == expected
    assert not list(world.directory.glob("*.tmp"))


def test_a_truncation_gives_it_up(world: World) -> None:
    offset = world.roll()
    taking = world.later.popleft()()
    taking.send(None)
    world.produce(0)
    world.log.truncate_to(offset - 100)
    whole(taking)
    assert offset not in world.log._snapshots.offsets
    assert not list(world.directory.glob("*.tmp"))
    assert len(world.log.active_producers()) == PRODUCERS - 100


def test_close_ends_it(world: World) -> None:
    world.roll()
    taking = world.later.popleft()()
    taking.send(None)
    world.produce(0)
    end = world.log.log_end_offset
    expected = known(world.log.active_producers())
    world.log.close()
    whole(taking)
    assert known(world.content(end)) == expected


def test_segments_wait_for_the_snapshot_that_knows_what_they_tell(world: World) -> None:
    """Producers whose records are all deleted are still known after a crash, even while the next snapshot is taken."""
    first = world.roll()
    whole(world.later.popleft()())
    world.log.flush(NOW)
    world.produce(0)
    world.roll()
    committed(world.log)
    world.log.update_config(replace(LogConfig(), retention_bytes=0))
    delete_due(world.log, NOW)
    assert world.log.segments.bases[0] == first
    expected = known(world.log.active_producers())
    copied = world.copied("crashed")
    assert known(open_log(copied, clean=False).active_producers()) == expected
    whole(world.later.popleft()())
    delete_due(world.log, NOW)
    assert world.log.segments.bases[0] == first, "it is not on disk"
    world.log.flush(NOW)
    delete_due(world.log, NOW)
    assert world.log.segments.bases[0] > first
    copied = world.copied("crashed-later")
    assert known(open_log(copied, clean=False).active_producers()) == expected


def test_a_snapshot_that_a_flush_has_overtaken_is_brought_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush may move the recovery point past the snapshot before the snapshot is written."""
    root = tmp_path / "disk"
    root.mkdir()
    power = Power(root)
    with power.watched(monkeypatch):
        world = World(root / "topic-0")
        first = world.roll()
        whole(world.later.popleft()())
        world.log.flush(NOW)
        world.produce(0)
        second = world.roll()
        taking = world.later.popleft()()
        taking.send(None)
        world.log.flush(NOW)
        assert world.log.recovery_point == second == world.log.log_end_offset
        whole(taking)
        committed(world.log)
        expected = known(world.log.active_producers())
        world.log.update_config(replace(LogConfig(), retention_bytes=0))
        for label, base in (("before", first), ("after", second)):
            assert world.log.wants_flush == (label == "before")
            delete_due(world.log, NOW)
            purge(world.log, NOW + HOUR)
            assert world.log.segments.bases[0] == base
            for directory in (root, world.directory):
                sync_directory(str(directory))  # as a file system may do by itself: names without the files' contents
            power.after_power_loss(tmp_path / label)
            again = open_log(tmp_path / label / "topic-0", clean=False, recovery_point=second, log_start_offset=second)
            assert known(again.active_producers()) == expected
            world.log.flush(NOW)
    assert world.log._snapshots.offsets == [second], "the older one, which alone was safe, is not needed any more"


def test_the_flush_after_a_snapshot_syncs_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot gets its name after a flush that had already synced the directory."""
    root = tmp_path / "disk"
    root.mkdir()
    power = Power(root)
    with power.watched(monkeypatch):
        world = World(root / "topic-0")
        sync_directory(str(root))
        offset = world.roll()
        taking = world.later.popleft()()
        taking.send(None)
        world.log.flush(NOW)
        whole(taking)
        world.log.flush(NOW)
        power.after_power_loss(tmp_path / "after")
    assert (tmp_path / "after" / "topic-0" / f"{offset:020d}.snapshot").exists()


def test_the_first_flush_after_a_crash_syncs_a_snapshot_that_was_perhaps_not_synced(world: World) -> None:
    offset = world.roll()
    taking = world.later.popleft()()
    taking.send(None)
    world.log.flush(NOW)
    whole(taking)
    again = open_log(world.copied("crashed"), clean=False, recovery_point=offset)
    assert list(again._snapshots.to_sync()) == [offset]
    again.flush(NOW)
    assert not again.wants_flush


def test_what_a_snapshot_that_failed_would_have_told_is_written_down_when_its_segment_goes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.roll()
    whole(world.later.popleft()())
    world.log.flush(NOW)
    for producer in range(PRODUCERS):
        world.produce(producer)
    with monkeypatch.context() as patch:
        patch.setattr(producer_snapshots, "FileHandle", full_disk)
        base = world.roll()
        whole(world.later.popleft()())
    committed(world.log)
    expected = known(world.log.active_producers())
    world.log.update_config(replace(LogConfig(), retention_bytes=0))
    delete_due(world.log, NOW)
    assert world.log.segments.bases[0] == base
    whole(world.later.popleft()())
    purge(world.log, NOW + HOUR)
    again = open_log(world.copied("topic-1"), clean=False, log_start_offset=base)
    assert known(again.active_producers()) == expected


def full_disk(*_arguments: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_nothing_is_noted_while_none_is_taken(world: World) -> None:
    world.produce(5)
    assert all(entry.snapshot == 0 for entry in world.log.active_producers())


def test_what_an_append_does_of_it_does_not_grow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of an append does not grow: a roll copies a list, and leaves the rest for later."""
    monkeypatch.setattr(partition_log.PartitionLog, "_take_snapshot", None)
    world.roll()
    assert isinstance(world.log, PartitionLog)
    assert len(world.later) == 1


def test_an_append_that_is_flushed_at_once_leaves_the_snapshot_to_the_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of very many producers has megabytes."""
    world.roll()
    whole(world.later.popleft()())
    world.log.update_config(replace(LogConfig(), flush_messages=1))
    synced: list[str] = []
    sync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "fsync", in_this_thread(noted, sync))
    world.produce(0)
    assert world.log.recovery_point == world.log.log_end_offset
    assert not [name for name in synced if name.endswith(".snapshot")]
    assert world.log.wants_flush
    world.log.flush(NOW)
    assert [name for name in synced if name.endswith(".snapshot")]
    assert not world.log.wants_flush

"""Schedules under random faults in virtual time: each record fires once, none is lost, none is early."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest

from kbroker.protocol.partitioner import partition_of
from kbroker.schedules.marks import Begin
from kbroker.scheduling import index as index_module
from kbroker.scheduling import scheduled
from kbroker.scheduling.index import Index
from tests.figures import figure
from tests.replica_manager.virtual_time import run
from tests.scheduling.world import World
from tests.tries import tries


async def _live(folder: Path, seed: int) -> World:
    world = World(folder, seed)
    await world.run(15)
    return world


async def _with_a_dead_partition(folder: Path) -> list[bytes | None]:
    world = World(folder, 1)
    world.targets.is_faulty = False
    world.targets.dead.add(("a", 0))
    for number in range(10):
        world.schedule(b"%d" % number, None, "a", 100 + number)
    await world.settle(lambda: len(world.targets.records) >= 9, 60)
    found = [each.value for _, each in world.targets.records]
    world.targets.dead.clear()
    await world.settle(lambda: len(world.targets.records) == 10, 60)
    await world.end()
    assert {each.value for _, each in world.targets.records} == {b"%d" % each for each in range(10)}
    return found


def test_a_partition_that_does_not_answer_holds_up_only_its_own() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = run(_with_a_dead_partition(Path(folder)))
    assert len(found) == 9


def test_an_index_that_cannot_be_removed_now_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Exception] = [OSError("the disk"), sqlite3.OperationalError("the disk")]
    apply, remove = Index.apply, scheduled.remove_index

    def fail(work: Any) -> Any:
        def instead(*args: Any) -> Any:
            if faults and isinstance(faults[-1], OSError) == (work is remove):
                raise faults.pop()
            return work(*args)

        return instead

    async def live(folder: Path) -> None:
        world = World(folder, 1)
        world.targets.is_faulty = False
        world.schedule(b"v", None, "a", 100)
        await world.settle(lambda: len(world.targets.records) == 1, 60)
        await world.end()

    monkeypatch.setattr(Index, "apply", fail(apply))
    monkeypatch.setattr(scheduled, "remove_index", fail(remove))
    with tempfile.TemporaryDirectory() as folder:
        run(live(Path(folder)))
    assert not faults


@pytest.mark.parametrize("seed", [random.randrange(1 << 30) for _ in range(tries(16))], ids=lambda seed: "")
def test_each_record_fires_once_whatever_happens(seed: int) -> None:
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        world = run(_live(Path(folder), seed), within_s=3600)
    figure(f"a world of schedules, seed {seed}", f"{len(world.targets.records)} fired, {dict(world.targets.counts)}")


def test_records_for_a_partition_that_is_missing_hold_no_other_of_their_lane() -> None:
    """A target was created again with fewer partitions: keys whose hashes had chosen the third go to others."""

    async def live(folder: Path) -> list[bytes | None]:
        world = World(folder, 1)
        world.targets.is_faulty = False
        world.resize("a", 3)
        key = next(b"%d" % each for each in range(100) if partition_of(b"%d" % each, 3) == 2)
        for number in range(1100):
            world.schedule(b"named", None, "a", 100 + number, partition=2)
        world.schedule(b"hashed", key, "a", 5000)
        await world.settle(lambda: world.has_replayed, 60)
        world.resize("a", 2)
        await world.settle(lambda: len(world.targets.records) == 1, 30)
        found = [each.value for _, each in world.targets.records]
        world.resize("a", 3)
        await world.settle(lambda: len(world.targets.records) == 1101, 600)
        await world.end()
        return found

    with tempfile.TemporaryDirectory() as folder:
        assert run(live(Path(folder)), within_s=3600) == [b"hashed"]


def test_a_target_that_is_there_again_gets_what_is_late_at_once() -> None:
    async def live(folder: Path) -> float:
        world = World(folder, 1)
        world.targets.is_faulty = False
        world.resize("a", 0)
        world.schedule(b"v", None, "a", 100)
        await asyncio.sleep(1000)  # the pauses are minutes by now
        world.resize("a", 2)
        began = asyncio.get_running_loop().time()
        await world.settle(lambda: len(world.targets.records) == 1, 600)
        await world.end()
        return asyncio.get_running_loop().time() - began

    with tempfile.TemporaryDirectory() as folder:
        assert run(live(Path(folder)), within_s=3600) < 1


@pytest.mark.parametrize("lifted", [True, False], ids=["room comes back", "room was never there"])
def test_a_full_disk_is_waited_for_with_growing_pauses_and_one_line(
    lifted: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[float] = []
    is_full = True
    connect, remove = index_module._connect, scheduled.remove_index

    def connected(path: str) -> sqlite3.Connection:
        database = connect(path)
        opened.append(asyncio.get_running_loop().time())
        if is_full:
            database.execute("PRAGMA max_page_count = 1")
        return database

    removed: list[str] = []
    monkeypatch.setattr(index_module, "_connect", connected)

    def removing(folder: str) -> None:
        removed.append(folder)
        remove(folder)

    monkeypatch.setattr(scheduled, "remove_index", removing)

    async def live(folder: Path) -> None:
        nonlocal is_full
        if lifted:
            is_full = False
        world = World(folder, 1)
        world.targets.is_faulty = False
        world.schedule(b"v", None, "a", 400_000)
        if lifted:
            await world.settle(lambda: world.has_replayed, 60)
            is_full = True
            opened.clear()
            world.fill_up()
        removed.clear()
        for number in range(300):
            world.schedule(b"%d" % number, b"k%d" % number, "b", 100)
        await asyncio.sleep(300)
        assert not world.targets.records
        assert 5 <= len(set(opened)) <= 14, opened
        assert removed == []
        assert (
            len([each for each in caplog.records if "and are read again" in each.message and each.levelno >= 40]) == 1
        )
        is_full = False
        await world.settle(lambda: len(world.targets.records) == 301, 600)
        await world.end()

    with tempfile.TemporaryDirectory() as folder:
        run(live(Path(folder)), within_s=3600)


def test_a_leader_that_is_back_does_not_take_its_own_old_target_for_the_last_one() -> None:
    """The target before a mark decides where earlier records go, if their own mark is deleted."""

    async def live(folder: Path) -> list[str | None]:
        world = World(folder, 1)
        world.configure(schedule_target_topic="first")
        world.let_others_lead(Begin("second", before="first"))
        world.configure(schedule_target_topic="third")
        await world.settle(lambda: world.has_replayed, 60)
        world.configure(schedule_target_topic="fourth")
        await world.end()
        return [each.before for each in world.marks() if isinstance(each, Begin)]

    with tempfile.TemporaryDirectory() as folder:
        before = run(live(Path(folder)))
    assert before[-1] == "third"
    assert before[-2] in ("second", None)

"""Schedules under random faults in virtual time: each record fires once, none is lost, none is early."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest

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

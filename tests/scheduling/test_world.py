"""Schedules under random faults in virtual time: each record fires once, none is lost, none is early."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from tests.figures import figure
from tests.replica_manager.virtual_time import run
from tests.scheduling.world import World
from tests.tries import tries


async def _live(folder: Path, seed: int) -> World:
    world = World(folder, seed)
    await world.run(15)
    return world


@pytest.mark.parametrize("seed", [random.randrange(1 << 30) for _ in range(tries(16))], ids=lambda seed: "")
def test_each_record_fires_once_whatever_happens(seed: int) -> None:
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        world = run(_live(Path(folder), seed), within_s=3600)
    figure(f"a world of schedules, seed {seed}", f"{len(world.targets.records)} fired, {dict(world.targets.counts)}")

"""What a follower without the remote records reads from the store, to continue behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.tiers.earlier_state import read_earlier_state
from tests.tiers.world import World


def told(directory: Path, story: Callable[[World], Awaitable[None]]) -> None:
    async def scenario() -> None:
        world = World(directory)
        await world.load()
        try:
            await story(world)
        finally:
            await world.close()

    asyncio.run(scenario())


def remove_all(directory: Path, pattern: str) -> None:
    for each in directory.rglob(pattern):
        if each.is_file():
            each.unlink()


async def refused(world: World, epoch: int, offset: int, text: str) -> None:
    with pytest.raises(ApiError, match=text) as raised:
        await read_earlier_state(world.shared, world.tiered.owner, epoch, offset)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_the_state_is_that_at_the_end_of_the_segment(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.append(3, epoch=0)
        world.append(9, epoch=4)
        await world.round()
        for epoch, offset, end in ((0, 0, 2), (0, 1, 2), (4, 3, 4), (4, 9, 10)):
            found = await read_earlier_state(world.shared, world.tiered.owner, epoch, offset)
            assert found.end_offset == end
            assert list(found.epochs) == [(0, 0), (4, 3)][: 2 if end > 3 else 1]
            assert decode_snapshot(found.producers) == []
        await refused(world, 0, 4, "no remote segment with offset 4 of leader epoch 0 is known")
        await refused(world, 4, 10, "no remote segment with offset 10")
        remove_all(world.store, "*")
        await refused(world, 4, 9, "no such object")

    told(tmp_path, story)


def test_without_a_snapshot_of_the_producers_the_state_is_unknown(tmp_path: Path) -> None:
    """A log without known producers would take records twice."""

    async def story(world: World) -> None:
        world.append(5)
        remove_all(Path(world.log.directory), "*.snapshot")
        await world.round()
        assert world.objects == [0, 2]
        await refused(world, 0, 3, "has no snapshot of the producers")

    told(tmp_path, story)

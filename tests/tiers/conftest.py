"""What the tests of rounds share: a story in a world with one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.tiers.world import World

Story = Callable[[World], Awaitable[None]]


@pytest.fixture
def told(tmp_path: Path) -> Callable[[Story], None]:
    """Run a story in a world."""

    def run(story: Story) -> None:
        async def scenario() -> None:
            world = World(tmp_path)
            await world.load()
            try:
                await story(world)
            finally:
                await world.close()

        asyncio.run(scenario())

    return run

"""Sessions of simulated processes, compared with ZooKeeper's."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import SessionExpired
from tests.simulation.loop import Life, SimLoop
from tests.simulation.network import Network
from tests.simulation.store import SimTree

TIMEOUT_S = 3.0


def test_a_process_that_was_frozen_when_it_was_killed_begins_no_session() -> None:
    loop = SimLoop()
    loop.network = Network(loop, Random(1))
    life = Life("broker1", 1)
    ensemble = MemoryEnsemble()
    tree = SimTree(ensemble, loop, Random(1), life, TIMEOUT_S)

    async def world() -> None:
        life.frozen = True
        tree.be_silent()
        tree.break_connection()
        await asyncio.sleep(2 * TIMEOUT_S)
        life.dying = True  # as in SimBroker.kill, where the owner of files and sockets still runs to its end
        loop.thaw(life)
        with pytest.raises(SessionExpired):
            await tree.get("/")
        await asyncio.sleep(TIMEOUT_S)

    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(loop.create_task(world(), context=loop.world))
    finally:
        loop.close()
        asyncio.set_event_loop(None)
    assert not ensemble._sessions

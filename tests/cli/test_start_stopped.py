"""A signal while a start still reads logs: it ends soon, in good order."""

from __future__ import annotations

import asyncio
from typing import cast

from kbroker.broker.node import BrokerNode
from kbroker.cli.start import _unless_stopped

NODE = cast("BrokerNode", object())


async def recovering() -> BrokerNode:
    """A start that goes on until it is cancelled."""
    await asyncio.wait_for(asyncio.Event().wait(), 30)
    raise AssertionError("not reached")


async def quick() -> BrokerNode:
    return NODE


def test_a_signal_ends_a_recovery() -> None:
    async def run() -> BrokerNode | None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        return await _unless_stopped(recovering(), stop)

    assert asyncio.run(run()) is None


def test_without_a_signal_it_starts() -> None:
    async def run() -> BrokerNode | None:
        return await _unless_stopped(quick(), asyncio.Event())

    assert asyncio.run(run()) is NODE

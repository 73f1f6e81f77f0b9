"""A signal while a start still reads logs: it ends soon, in good order."""

from __future__ import annotations

import asyncio
from typing import cast

from kbroker.broker import BrokerNode
from kbroker.cli.start import _started
from kbroker.log.directories.recovery_progress import RecoveryStopped


class Recovering:
    """A node whose start goes on until it is interrupted."""

    def __init__(self) -> None:
        self._interrupted = asyncio.Event()

    async def start(self) -> None:
        await asyncio.wait_for(self._interrupted.wait(), 30)
        raise RecoveryStopped

    def interrupt(self) -> None:
        self._interrupted.set()


class Quick(Recovering):
    async def start(self) -> None:
        pass


def test_a_signal_ends_a_recovery() -> None:
    async def run() -> bool:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_soon(stop.set)
        return await _started(cast("BrokerNode", Recovering()), stop)

    assert asyncio.run(run()) is False


def test_without_a_signal_it_starts() -> None:
    async def run() -> bool:
        return await _started(cast("BrokerNode", Quick()), asyncio.Event())

    assert asyncio.run(run()) is True

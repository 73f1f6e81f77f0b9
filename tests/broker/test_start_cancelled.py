"""A start is cancelled while one of its threads reads logs: the loop need not wait until everything is read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.recovery_progress import RecoveryStopped
from tests.broker.in_effect import in_effect


def test_cancelling_a_start_ends_its_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, told, outcome = threading.Event(), threading.Event(), []

    def load(_logs: LogManager, *_args: object) -> None:
        reading.set()
        outcome.append(told.wait(20))
        raise RecoveryStopped

    monkeypatch.setattr(LogManager, "load", load)
    monkeypatch.setattr(LogManager, "stop_loading", lambda _logs: told.set())

    async def run() -> None:
        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")})
        starting = asyncio.ensure_future(BrokerNode.start(config))
        assert await asyncio.to_thread(reading.wait, 60)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(asyncio.wait_for(run(), 60))
    assert outcome == [True], "the reading thread was told to end"


def test_cancelling_a_start_that_has_read_all_after_a_crash_does_not_pass_for_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leader epochs show a crash to clients, which then check whether the records that they have read still exist."""
    read, told = threading.Event(), threading.Event()
    real = LogManager.load

    def load(logs: LogManager, *args: Any) -> None:
        real(logs, *args)
        read.set()
        assert told.wait(20)

    async def epoch() -> int:
        node = await BrokerNode.start(config)
        if "t" not in node.controller.state.topics:
            node.controller.auto_create("t")
            await in_effect(node)
        known = node.controller.state.partition("t", 0)
        assert known is not None
        await node.stop()
        return known.leader_epoch

    async def cancelled() -> None:
        starting = asyncio.ensure_future(BrokerNode.start(config))
        assert await asyncio.to_thread(read.wait, 60)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path / "data")})
    before = asyncio.run(epoch())
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(LogManager, "load", load)
        patch.setattr(LogManager, "stop_loading", lambda _logs: told.set())
        asyncio.run(asyncio.wait_for(cancelled(), 60))
    assert asyncio.run(epoch()) > before

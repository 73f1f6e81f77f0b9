"""A start that is cancelled while a thread of it reads logs: the loop is not held up until all is read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.recovery_progress import RecoveryStopped


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

"""A start that fails releases everything it has acquired, wherever it fails: the same start then works."""

from __future__ import annotations

import asyncio

import pytest

from compat_tests.harness.brokers import free_port
from kbroker.broker import base_node, node
from kbroker.broker.node import BrokerNode
from kbroker.broker.periodic_work import PeriodicWork
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.network.server import Server

PLACES = [
    (node, "EmbeddedStore"),
    (node, "load_logs"),
    (base_node, "GroupCoordinator"),
    (BrokerNode, "_host_all"),
    (Server, "listen"),
    (Controller, "register_broker"),
    (PeriodicWork, "begin"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_a_start_that_fails_gives_everything_back(tmp_path, monkeypatch, owner, name):
    config = {"listeners": f"PLAINTEXT://127.0.0.1:{free_port()}", "log.dirs": str(tmp_path / "data")}

    def fail(*_args, **_kw):
        raise OSError(f"{name} fails")

    async def run():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(OSError, match=f"{name} fails"):
                await BrokerNode.start(BrokerConfig(config))
        started = await BrokerNode.start(BrokerConfig(config))
        await started.stop()

    asyncio.run(run())
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()

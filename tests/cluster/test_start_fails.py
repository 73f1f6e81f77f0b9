"""A broker of a cluster whose start fails releases everything it has acquired, wherever it fails."""

from __future__ import annotations

import asyncio

import pytest

from compat_tests.harness.brokers import free_port
from kbroker.broker import base_node, cluster_node
from kbroker.broker.cluster_node import ClusterNode
from kbroker.broker.membership import Membership
from kbroker.broker.periodic_work import PeriodicWork
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster.cluster_controller import ClusterController
from kbroker.controller.member.entity_configs import EntityConfigs
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.network.server import Server
from kbroker.replica_manager.manager import ReplicaManager

PLACES = [
    (EntityConfigs, "load"),
    (cluster_node, "load_logs"),
    (base_node, "GroupCoordinator"),
    (Server, "listen"),
    (Membership, "begin"),
    (ReplicaManager, "begin"),
    (ClusterController, "start"),
    (PeriodicWork, "begin"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=[name for _, name in PLACES])
def test_a_start_that_fails_gives_everything_back(tmp_path, monkeypatch, owner, name):
    settings = {
        "zookeeper.connect": "in memory",
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "log.dirs": str(tmp_path / "data"),
    }

    def fail(*_args, **_kw):
        raise OSError(f"{name} fails")

    async def run():
        ensemble = MemoryEnsemble()
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(OSError, match=f"{name} fails"):
                await ClusterNode.start(BrokerConfig(settings), tree=ensemble.connect())
        started = await ClusterNode.start(BrokerConfig(settings), tree=ensemble.connect())
        assert started.controller.is_active
        await started.stop()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 10)

    asyncio.run(run())
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_start_that_fails_ends_the_work_for_share_groups(tmp_path, monkeypatch):
    """Clients reach a broker before its start has ended."""
    settings = {
        "zookeeper.connect": "in memory",
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
        "log.dirs": str(tmp_path / "data"),
    }
    ended = []

    async def work():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def fail(node, *_args):
        node.services.share.spawn(work())
        await asyncio.sleep(0)
        raise OSError("not known")

    async def run():
        monkeypatch.setattr(ClusterNode, "knows_live", fail)
        with pytest.raises(OSError, match="not known"):
            await ClusterNode.start(BrokerConfig(settings), tree=MemoryEnsemble().connect())
        assert ended

    asyncio.run(run())

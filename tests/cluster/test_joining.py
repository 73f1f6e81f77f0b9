"""A broker that joins: it serves nobody before it is registered, and waits for an earlier process's session to end."""

from __future__ import annotations

import asyncio

import pytest

from compat_tests.harness.brokers import free_port
from kbroker.broker.cluster_node import ClusterNode
from kbroker.broker.membership import prepare
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.member.registration import BrokerRegistration
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.znodes import Endpoint, Registration
from kbroker.network.loop_watch import new_event_loop
from kbroker.peers.connection import TcpPeers
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse

PATIENCE_MS = 20_000


def run(work):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.wait_for(work, PATIENCE_MS / 1000))


def test_nobody_is_served_before_the_broker_is_registered(tmp_path):
    """A controller would send it requests meant for the registration of its earlier process."""

    async def scenario():
        ensemble, port = MemoryEnsemble(), free_port()
        settings = {
            "zookeeper.connect": "in memory",
            "broker.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(tmp_path),
        }
        first = await ClusterNode.start(BrokerConfig(settings), tree=ensemble.connect())
        await first.stop()
        earlier = ensemble.connect()
        left = Registration((Endpoint("PLAINTEXT", "127.0.0.1", port),), {"PLAINTEXT": "PLAINTEXT"})
        await BrokerRegistration(earlier, 1, PATIENCE_MS).register(left)
        starting = asyncio.create_task(ClusterNode.start(BrokerConfig(settings), tree=ensemble.connect()))
        peer = TcpPeers().peer("127.0.0.1", port, "controller")
        said = ""
        while "no answer" not in said:  # refused until it listens, and silent afterwards
            with pytest.raises(PeerUnavailable) as gone:
                await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, 300)
            said = str(gone.value)
            await asyncio.sleep(0)
        assert not starting.done()
        earlier.expire()
        node = await starting
        assert (await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)).api_keys
        assert node.registration.epoch > 0
        peer.close()
        await node.stop()

    run(scenario())


def test_a_process_that_was_frozen_while_it_waited_looks_once_more(monkeypatch):
    async def scenario():
        ensemble = MemoryEnsemble()
        earlier, tree = ensemble.connect(), ensemble.connect()
        await prepare(tree)
        reached_at = Registration((Endpoint("PLAINTEXT", "h", 1),), {"PLAINTEXT": "PLAINTEXT"})
        await BrokerRegistration(earlier, 1, PATIENCE_MS).register(reached_at)

        def expire_and_be_late(_seconds):
            earlier.expire()
            raise TimeoutError

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "timeout", expire_and_be_late)
            registration = BrokerRegistration(tree, 1, PATIENCE_MS)
            await registration.register(reached_at)
        assert registration.epoch > 0

    run(scenario())


def test_a_start_waits_while_zookeeper_is_away(tmp_path, monkeypatch):
    async def scenario():
        tree = MemoryEnsemble().connect()
        settings = {
            "zookeeper.connect": "in memory",
            "broker.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "log.dirs": str(tmp_path),
        }
        register, cuts = BrokerRegistration.register, []

        async def cut_once(self, what):
            if not cuts:
                cuts.append(tree.cut())
                asyncio.get_running_loop().call_later(0.05, tree.heal)
            await register(self, what)

        monkeypatch.setattr(BrokerRegistration, "register", cut_once)
        node = await ClusterNode.start(BrokerConfig(settings), tree=tree)
        assert node.registration.epoch > 0
        await node.stop()

    run(scenario())

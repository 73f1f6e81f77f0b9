"""A broker's znode: created, found occupied, created again."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.broker.membership import Membership, prepare
from kbroker.config.model import ConfigError
from kbroker.controller import znodes
from kbroker.controller.member.registration import BrokerRegistration
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import SetData
from kbroker.controller.znodes import Endpoint, Registration
from tests.controller.member.world import PATIENCE_S, until

LONG_MS = PATIENCE_S * 1000


def reached_at(port):
    return Registration((Endpoint("PLAINTEXT", "h", port),), {"PLAINTEXT": "PLAINTEXT"})


def run(scenario):
    async def inside():
        ensemble = MemoryEnsemble()
        await prepare(ensemble.connect())
        async with asyncio.timeout(PATIENCE_S):
            await scenario(ensemble)

    asyncio.run(inside())


def test_the_epoch_is_that_of_the_znode():
    async def scenario(ensemble):
        tree = ensemble.connect()
        registration = BrokerRegistration(tree, 1, LONG_MS)
        await registration.register(reached_at(1))
        node = await tree.get("/brokers/ids/1")
        assert registration.epoch == node.stat.created
        assert node.stat.owner == tree.session_id
        assert node.stat.version == 1
        assert znodes.read("", node.data, Registration.decode) == reached_at(1)

    run(scenario)


def test_registering_twice_by_one_session_changes_nothing():
    async def scenario(ensemble):
        registration = BrokerRegistration(ensemble.connect(), 1, LONG_MS)
        await registration.register(reached_at(1))
        epoch = registration.epoch
        await registration.register(reached_at(1))
        assert registration.epoch == epoch

    run(scenario)


def test_an_id_that_stays_taken():
    async def scenario(ensemble):
        await BrokerRegistration(ensemble.connect(), 1, LONG_MS).register(reached_at(1))
        with pytest.raises(ConfigError, match=r"broker.id 1 is taken"):
            await BrokerRegistration(ensemble.connect(), 1, 1).register(reached_at(2))

    run(scenario)


def test_the_end_of_an_earlier_processs_session_is_waited_for():
    async def scenario(ensemble):
        earlier = ensemble.connect()
        await BrokerRegistration(earlier, 1, LONG_MS).register(reached_at(1))
        registration = BrokerRegistration(ensemble.connect(), 1, LONG_MS)
        waiting = asyncio.create_task(registration.register(reached_at(1)))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        earlier.expire()
        await waiting
        assert registration.epoch > 0

    run(scenario)


def test_an_address_that_is_another_brokers():
    async def scenario(ensemble):
        await BrokerRegistration(ensemble.connect(), 1, LONG_MS).register(reached_at(1))
        with pytest.raises(ConfigError, match="h:1 is the address of broker 1"):
            await BrokerRegistration(ensemble.connect(), 2, LONG_MS).register(reached_at(1))

    run(scenario)


class Follower:
    def __init__(self):
        self.heard = []

    def expired(self):
        self.heard.append("expired")

    def renewed(self):
        self.heard.append("renewed")


def test_a_new_session_registers_again_with_a_higher_epoch():
    async def scenario(ensemble):
        tree, follower, failures = ensemble.connect(), Follower(), []
        registration = BrokerRegistration(tree, 1, LONG_MS)
        membership = Membership(tree, registration, follower, failures.append)
        await membership.begin(reached_at(1))
        epochs = [registration.epoch]
        for number in range(1, 4):
            tree.expire()
            await until(lambda number=number: len(follower.heard) == 2 * number)
            epochs.append(registration.epoch)
        assert follower.heard == ["expired", "renewed"] * 3
        assert epochs == sorted(set(epochs))
        node = await tree.get("/brokers/ids/1")
        assert (node.stat.created, node.stat.owner) == (registration.epoch, tree.session_id)
        assert not failures
        membership.close()

    run(scenario)


def test_a_broker_that_is_cut_off_keeps_its_epoch_until_its_session_is_gone():
    async def scenario(ensemble):
        tree, follower = ensemble.connect(), Follower()
        registration = BrokerRegistration(tree, 1, LONG_MS)
        membership = Membership(tree, registration, follower, lambda _text: None)
        await membership.begin(reached_at(1))
        epoch = registration.epoch
        tree.cut()
        tree.heal()
        assert (registration.epoch, follower.heard) == (epoch, [])
        tree.cut()
        tree.expire()
        tree.heal()
        await until(lambda: follower.heard == ["expired", "renewed"])
        assert registration.epoch > epoch
        membership.close()

    run(scenario)


def test_znodes_are_made_once_and_the_cluster_has_one_id():
    async def scenario(ensemble):
        ids = await asyncio.gather(*(prepare(ensemble.connect()) for _ in range(3)))
        assert len(set(ids)) == 1

    run(scenario)


def test_a_cluster_id_that_cannot_be_read():
    async def scenario(ensemble):
        tree = ensemble.connect()
        await tree.commit([SetData(znodes.CLUSTER_ID, b"{")])
        with pytest.raises(ConfigError, match="/cluster/id cannot be read"):
            await prepare(tree)

    run(scenario)

"""How a member handles /feature: at its start, after a change, and if it contains an unsupported feature."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.config.model import ConfigError
from kbroker.controller.features import GROUP_VERSION, TRANSACTION_VERSION
from kbroker.controller.member.finalized_features import NO_EPOCH, FinalizedFeatures
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import Create, Delete, Denied, SetData
from kbroker.controller.znodes import FEATURE, Features, Unreadable

from .world import PATIENCE_S, until

BOTH = {GROUP_VERSION: 1, TRANSACTION_VERSION: 2}


class Follower:
    def __init__(self, ensemble):
        self.tree = ensemble.connect()
        self.features = FinalizedFeatures(self.tree)
        self.heard = []
        self.failed = []

    def follow(self):
        self.features.follow(lambda levels, epoch: self.heard.append((levels, epoch)), self.failed.append)


def run(scenario, *before):
    async def inside():
        ensemble = MemoryEnsemble()
        tool = ensemble.connect()
        if before:
            await tool.commit([Create(FEATURE, before[0])])
        follower = Follower(ensemble)
        async with asyncio.timeout(PATIENCE_S):
            await scenario(tool, follower)
        follower.features.close()

    asyncio.run(inside())


def test_it_is_followed_from_before_it_is_there_until_it_is_gone_and_there_again():
    async def scenario(tool, follower):
        await follower.features.load()
        follower.follow()
        await tool.commit([Create(FEATURE, Features(BOTH).encode())])
        await until(lambda: follower.heard[-1] == (BOTH, 0))
        await tool.commit([SetData(FEATURE, Features({TRANSACTION_VERSION: 1}).encode())])
        await until(lambda: follower.heard[-1] == ({TRANSACTION_VERSION: 1}, 1))
        await tool.commit([Delete(FEATURE)])
        await until(lambda: follower.heard[-1] == ({}, NO_EPOCH))
        await tool.commit([Create(FEATURE, Features({}).encode())])
        await until(lambda: follower.heard[-1] == ({}, 0))
        assert follower.heard[0] == ({}, NO_EPOCH)
        assert len(follower.heard) == 5
        assert not follower.failed

    run(scenario)


@pytest.mark.parametrize("levels", [{"metadata.version": 20}, {TRANSACTION_VERSION: 3}, {**BOTH, "share.version": 3}])
def test_with_what_it_does_not_support_it_does_not_start(levels):
    async def scenario(_tool, follower):
        name, level = next(each for each in levels.items() if each not in BOTH.items())
        with pytest.raises(
            ConfigError, match=f"/feature finalizes features that this broker does not support: {name} {level}$"
        ):
            await follower.features.load()

    run(scenario, Features(levels).encode())


def test_nor_does_it_go_on():
    async def scenario(tool, follower):
        await follower.features.load()
        follower.follow()
        await tool.commit([SetData(FEATURE, Features({"share.version": 3}).encode())])
        await until(lambda: follower.failed)
        assert follower.failed == ["/feature finalizes features that this broker does not support: share.version 3"]
        assert follower.heard == [(BOTH, 0)]

    run(scenario, Features(BOTH).encode())


def test_what_is_disabled_does_not_count():
    async def scenario(_tool, follower):
        await follower.features.load()
        assert (follower.features.levels, follower.features.epoch) == ({}, NO_EPOCH)

    run(scenario, Features({"share.version": 3}, enabled=False).encode())


def test_what_cannot_be_read_hinders_a_start_and_is_passed_over_later():
    async def scenario(tool, follower):
        await follower.features.load()
        follower.follow()
        await tool.commit([SetData(FEATURE, b"nonsense")])
        await until(lambda: follower.features._watched)
        await follower.features.settled()
        with pytest.raises(Unreadable, match="/feature cannot be read"):
            await follower.features.load()
        await tool.commit([SetData(FEATURE, Features({TRANSACTION_VERSION: 1}).encode())])
        await until(lambda: follower.heard[-1] == ({TRANSACTION_VERSION: 1}, 2))
        assert len(follower.heard) == 2
        assert not follower.failed

    run(scenario, Features(BOTH).encode())


def test_what_changed_while_zookeeper_was_away_is_known_after_it():
    async def scenario(tool, follower):
        await follower.features.load()
        follower.follow()
        await follower.features.settled()
        follower.tree.cut()
        await tool.commit([SetData(FEATURE, Features({}).encode())])
        follower.tree.heal()
        await until(lambda: follower.heard[-1] == ({}, 1))

    run(scenario, Features(BOTH).encode())


def test_what_zookeeper_has_denied_is_looked_at_again_when_it_is_back():
    async def scenario(tool, follower):
        await follower.features.load()
        get = follower.tree.get

        async def denied(path, _changed=None):
            raise Denied(f"ZooKeeper does not let this broker use {path}")

        follower.tree.get = denied
        follower.follow()
        await follower.features.settled()
        follower.tree.get = get
        await tool.commit([SetData(FEATURE, Features({}).encode())])
        follower.tree.cut()
        follower.tree.heal()
        await until(lambda: follower.heard[-1] == ({}, 1))
        await tool.commit([SetData(FEATURE, Features({TRANSACTION_VERSION: 1}).encode())])
        await until(lambda: follower.heard[-1] == ({TRANSACTION_VERSION: 1}, 2))

    run(scenario, Features(BOTH).encode())

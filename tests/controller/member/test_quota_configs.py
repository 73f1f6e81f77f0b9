"""Quotas in ZooKeeper: where they are stored, also for a user's client id, and that all brokers receive them."""

from __future__ import annotations

import asyncio
import json

import pytest

from kbroker.controller.tree.znode import Create, SetData
from kbroker.controller.znodes import CONFIG_CHANGE
from kbroker.quota.configured import Entity, revised
from tests.controller.member.world import cut_once, members, until


async def set_quota(member, entity, **limits):
    kind, name = entity.path()
    await member.metadata.change_configs(kind, name, lambda old: revised(old, limits.items()))


async def knows(member, quotas):
    await until(lambda: member.metadata.state.quotas == quotas)


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("alice"), "/config/users/alice"),
        (Entity(""), "/config/users/<default>"),
        (Entity("a b", "app"), "/config/users/a%20b/clients/app"),
        (Entity("", ""), "/config/users/<default>/clients/<default>"),
        (Entity(client_id=""), "/config/clients/<default>"),
        (Entity(client_id="app"), "/config/clients/app"),
    ],
)
def test_quotas_stand_where_kafka_has_them_and_all_hear_of_them(entity, path):
    async def world():
        async with members(2) as (first, second):
            await set_quota(first, entity, producer_byte_rate=1024.0)
            node = await first.tree.get(path)
            assert json.loads(node.data) == {"version": 1, "config": {"producer_byte_rate": "1024"}}
            await knows(second, {entity: {"producer_byte_rate": 1024.0}})
            await set_quota(second, entity, producer_byte_rate=None, request_percentage=1.5)
            await knows(first, {entity: {"request_percentage": 1.5}})
            await set_quota(second, entity, request_percentage=None)
            await knows(first, {})

    asyncio.run(world())


def test_what_a_java_broker_has_written_is_heard_of_and_loaded():
    async def world():
        async with members(1) as (first,):
            data = json.dumps({"version": 1, "config": {"consumer_byte_rate": "7"}}).encode()
            paths = [f"/config/users/{path}" for path in ("bob", "bob/clients", "bob/clients/app")]
            await first.tree.commit([Create(path) for path in paths])
            await first.tree.commit([SetData(paths[-1], data)])
            told = json.dumps({"version": 2, "entity_path": "users/bob/clients/app"}).encode()
            await first.tree.commit([Create(CONFIG_CHANGE, told, sequential=True)])
            await knows(first, {Entity("bob", "app"): {"consumer_byte_rate": 7.0}})
            await first.configs.load()
            assert first.configs.of("users", "bob/clients/app") == {"consumer_byte_rate": "7"}

    asyncio.run(world())


def test_two_who_set_a_users_first_quota_at_once_both_do():
    async def world():
        async with members(2) as (first, second):
            await asyncio.gather(
                set_quota(first, Entity("carol", "one"), producer_byte_rate=1.0),
                set_quota(second, Entity("carol", "two"), producer_byte_rate=2.0),
            )
            both = {
                Entity("carol", "one"): {"producer_byte_rate": 1.0},
                Entity("carol", "two"): {"producer_byte_rate": 2.0},
            }
            await knows(first, both)
            await knows(second, both)

    asyncio.run(world())


def test_a_quota_that_could_not_be_read_is_read_once_zookeeper_is_back():
    async def world():
        async with members(2) as (first, second):
            alice = Entity("alice")
            cut = cut_once(second.tree, "/config/users/alice")
            await set_quota(first, alice, producer_byte_rate=1024.0)
            await cut.wait()
            second.tree.heal()
            await knows(second, {alice: {"producer_byte_rate": 1024.0}})

    asyncio.run(world())

"""Scenarios: groups that form, grow, shrink and remember; what an admin sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from compat_tests.clients.aio.tools import admin, answer, consumer, create, eventually, fill, scenario, take
from compat_tests.clients.common import bulk

FAST = {"heartbeat_interval_ms": 200, "session_timeout_ms": 6000}


async def member(stack: AsyncExitStack, bootstrap: str, group: str, topic: str, **config: Any) -> AIOKafkaConsumer:
    """Return a member of a group that subscribes to one topic; it leaves with the stack."""
    return await stack.enter_async_context(consumer(bootstrap, topic, group_id=group, **{**FAST, **config}))


def partitions(client: AIOKafkaConsumer) -> list[int]:
    """Return the partitions that a member has now."""
    return sorted(tp.partition for tp in client.assignment())


async def settle(members: Sequence[AIOKafkaConsumer], sizes: Sequence[int]) -> list[list[int]]:
    """Wait until the members have as many partitions as `sizes` says and no partition has two owners."""

    async def settled() -> list[list[int]]:
        shares = sorted(partitions(each) for each in members)
        owned = [partition for share in shares for partition in share]
        right = sorted(len(share) for share in shares) == sorted(sizes) and len(owned) == len(set(owned))
        return shares if right else []

    return list(await eventually(f"an assignment of {sizes}", settled))


async def described(bootstrap: str, group: str) -> dict[str, Any]:
    """Return what an admin sees of a group, without the random ids of its members."""
    async with admin(bootstrap) as client:
        (response,) = await client.describe_consumer_groups([group], include_authorized_operations=True)
    (found,) = answer(response)["groups"]
    for each in found["members"]:
        each["member_metadata"], each["member_assignment"] = (
            len(each["member_metadata"]),
            len(each["member_assignment"]),
        )
    return dict(found)


async def stable(bootstrap: str, group: str) -> dict[str, Any]:
    """Wait until no rebalance is in progress, and return what an admin sees then."""

    async def found() -> dict[str, Any] | None:
        seen = await described(bootstrap, group)
        return seen if seen["state"] == "Stable" else None

    return dict(await eventually("a stable group", found))


async def _grow_and_shrink(bootstrap: str, unique: str, strategy: type) -> dict[str, Any]:
    topic = await create(bootstrap, unique, 6)
    seen: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        members: list[AIOKafkaConsumer] = []
        for count, sizes in ((1, [6]), (2, [3, 3]), (3, [2, 2, 2])):
            config = {"partition_assignment_strategy": (strategy,)}
            members.append(await member(stack, bootstrap, unique, topic, **config))
            seen[f"{count} members"] = await settle(members, sizes)
        seen["described"] = await stable(bootstrap, unique)
        await members.pop().stop()
        seen["one left"] = await settle(members, [3, 3])
        await members.pop().stop()
        seen["two left"] = await settle(members, [6])
    seen["empty"] = await described(bootstrap, unique)
    return seen


@scenario
async def range_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    return await _grow_and_shrink(bootstrap, unique, RangePartitionAssignor)


@scenario
async def round_robin_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    return await _grow_and_shrink(bootstrap, unique, RoundRobinPartitionAssignor)


@scenario
async def sticky_group_grows_and_shrinks(bootstrap: str, unique: str) -> object:
    seen = await _grow_and_shrink(bootstrap, unique, StickyPartitionAssignor)
    # Which partitions a member keeps depends on the random member ids; the number of kept partitions does not.
    return {stage: [len(each) for each in share] for stage, share in seen.items() if isinstance(share, list)}


@scenario
async def static_members_keep_their_partitions(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 4)
    config = {"session_timeout_ms": 30_000}
    async with AsyncExitStack() as stack:
        one = await member(stack, bootstrap, unique, topic, group_instance_id="one", **config)
        two = await member(stack, bootstrap, unique, topic, group_instance_id="two", **config)
        await settle([one, two], [2, 2])
        await stable(bootstrap, unique)
        before = [partitions(one), partitions(two)]
        await two.stop()
        away = await described(bootstrap, unique)
        two = await member(stack, bootstrap, unique, topic, group_instance_id="two", **config)
        await settle([one, two], [2, 2])
        after = [partitions(one), partitions(two)]
    return {"same": before == after, "while one is away": [away["state"], len(away["members"])]}


@scenario
async def a_group_goes_on_where_it_stopped(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    for partition in (0, 1):
        await fill(bootstrap, topic, bulk(10), partition)
    async with AsyncExitStack() as stack:
        first = await member(stack, bootstrap, unique, topic)
        await settle([first], [2])
        await first.commit({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 7})
    async with AsyncExitStack() as stack:
        second = await member(stack, bootstrap, unique, topic)
        return [[record.partition, record.offset] for record in await take(second, 9)]


@scenario
async def commits_happen_by_themselves(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, bulk(10))
    config = {"group_id": unique, "enable_auto_commit": True, "auto_commit_interval_ms": 100}
    async with consumer(bootstrap, topic, **config) as client:
        await take(client, 10)
        return await eventually("a commit", lambda: client.committed(TopicPartition(topic, 0)))


@scenario
async def members_that_work_at_the_same_time(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 4)
    for partition in range(4):
        await fill(bootstrap, topic, bulk(25), partition)
    seen: list[tuple[int, int]] = []
    async with AsyncExitStack() as stack:
        members = [await member(stack, bootstrap, unique, topic) for _ in range(2)]
        await settle(members, [2, 2])

        async def work(client: AIOKafkaConsumer) -> None:
            while len(set(seen)) < 100:
                for records in (await client.getmany(timeout_ms=100)).values():
                    seen.extend((record.partition, record.offset) for record in records)

        await asyncio.wait_for(asyncio.gather(*(work(each) for each in members)), 30)
    return sorted(set(seen)) == [(p, offset) for p in range(4) for offset in range(25)]


@scenario
async def groups_as_an_admin_sees_them(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    async with consumer(bootstrap, group_id=unique) as client:
        client.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        await client.commit({TopicPartition(topic, 0): 0})
    async with admin(bootstrap) as client:
        listed = [list(each) for each in await client.list_consumer_groups() if each[0] == unique]
        coordinator = await client.find_coordinator(unique)
        some = await client.list_consumer_group_offsets(unique, partitions=[TopicPartition(topic, p) for p in (0, 1)])
        unknown = await client.list_consumer_group_offsets(f"{unique}-none")
    return {
        "listed": listed,
        "coordinator": coordinator,
        "some": sorted([tp.partition, *offset] for tp, offset in some.items()),
        "unknown": len(unknown),
        "described": await described(bootstrap, unique),
        "described unknown": await described(bootstrap, f"{unique}-none"),
    }

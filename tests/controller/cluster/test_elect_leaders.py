"""Elections by request, and leadership that returns to the preferred replicas automatically."""

from __future__ import annotations

from dataclasses import replace

from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.elect_leaders import PREFERRED, UNCLEAN, rebalance
from kbroker.controller.tree.znode import Create
from kbroker.controller.znodes import PREFERRED_ELECTION, encode_partitions
from kbroker.protocol.errors import ApiError, ErrorCode

from .world import QUIET_CONFIG, World, in_world, until

P = ("t", 0)


async def elect(world: World, kind: int, *partitions: Partition) -> list[int]:
    """Elect leaders; return the leaders, and negated error codes."""
    results = await world.active.controller.elect_leaders(kind, partitions)
    found = (results[each] for each in partitions)
    return [-each.code if isinstance(each, ApiError) else each for each in found]


async def let_another_lead(world: World, name: str = "t") -> None:
    """Move leadership away from broker 2, the preferred leader of a topic on 2 and 1, and let 2 be in sync again."""
    topic_id = await world.create_topic(name, {0: [2, 1]})
    await world.settle()
    await world.kill(2)
    await world.settle()
    await world.start(2)
    await world.alter_isr(topic_id, name, 0, [1, 2])
    assert world.state(name).leader == 1


def test_the_preferred_replica_leads_again() -> None:
    async def scenario(world: World) -> None:
        await let_another_lead(world)
        before = world.state("t")
        assert await elect(world, PREFERRED, P) == [2]
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (2, before.leader_epoch + 1, before.isr)
        await world.settle()
        assert world.broker(1).told.replicas[P].leader == 2
        assert await elect(world, PREFERRED, P) == [-ErrorCode.ELECTION_NOT_NEEDED]

    in_world(scenario, 1, 2)


def test_who_is_not_in_sync_is_not_elected() -> None:
    async def scenario(world: World) -> None:
        await let_another_lead(world)
        topic_id = world.context.topics["t"].topic_id
        await world.alter_isr(topic_id, "t", 0, [1])
        assert await elect(world, PREFERRED, P, ("t", 9), ("nothing", 0)) == [
            -ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            -ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        await world.kill(2)
        await world.settle()
        await world.delete_topic("t")
        await world.settle()
        assert await elect(world, PREFERRED, P) == [-ErrorCode.INVALID_TOPIC_EXCEPTION]

    in_world(scenario, 1, 2)


def test_somebody_leads_at_any_price() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [2, 1]})
        await world.create_topic("u", {0: [2, 3]})
        await world.settle()
        assert await elect(world, UNCLEAN, P) == [-ErrorCode.ELECTION_NOT_NEEDED]
        await world.alter_isr(topic_id, "t", 0, [2])
        await world.kill(3)
        await world.kill(2)
        await world.settle()
        assert await elect(world, UNCLEAN, P, ("u", 0)) == [1, -ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
        assert world.state("t").recovering

    in_world(scenario, 1, 2, 3)


def test_a_tool_asks_by_a_znode() -> None:
    async def scenario(world: World) -> None:
        await let_another_lead(world)
        for data in (b"[]", encode_partitions([P, ("nothing", 3)])):
            await world.tool.commit([Create(PREFERRED_ELECTION, data)])
            await world.settle()
            assert not world.exists(PREFERRED_ELECTION)
        assert world.state("t").leader == 2

    in_world(scenario, 1, 2)


def test_leaderships_are_balanced_by_and_by() -> None:
    async def scenario(world: World) -> None:
        for number in range(8):
            await world.create_topic(f"even{number}", {0: [2, 1]})
        await world.settle()
        topic_id = await world.create_topic("t", {0: [2, 1]})
        await world.settle()
        await world.kill(2)
        await world.settle()
        await world.start(2)
        await world.alter_isr(topic_id, "t", 0, [1, 2])
        await until(lambda: world.state("t").leader == 2)

    config = replace(QUIET_CONFIG, auto_rebalance=True, imbalance_check_seconds=1)
    in_world(scenario, 1, 2, config=config)


def test_a_little_imbalance_is_left_alone() -> None:
    async def scenario(world: World) -> None:
        topics = [await world.create_topic(f"t{number}", {0: [2, 1]}) for number in range(12)]
        await world.settle()
        await world.kill(2)
        await world.settle()
        await world.start(2)
        for number in range(1, 12):
            await world.alter_isr(topics[number], f"t{number}", 0, [1, 2])
            assert await elect(world, PREFERRED, (f"t{number}", 0)) == [2]
        await world.alter_isr(topics[0], "t0", 0, [1, 2])
        term = world.active.controller._term
        assert term is not None
        await rebalance(term)
        assert world.state("t0").leader == 1  # one of twelve is less than ten percent
        term.config = replace(term.config, imbalance_percentage=5)
        await rebalance(term)
        assert world.state("t0").leader == 2

    in_world(scenario, 1, 2)

"""A controller that dies at any of its commits: the next controller finishes the work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kbroker.controller.znodes import topic_path
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.inter_broker import ControlledShutdownRequest

from .agreement import check
from .world import World, in_world

Step = Callable[[World], Awaitable[None]]
CONTROLLER = 9
"""The broker that dies: it leads and follows nothing, so only its work as controller is interrupted."""


def with_every_death(prepare: Step, act: Step, expect: Callable[[World], None]) -> None:
    """Let the controller die at its first commit within `act`, then at its second, and so on, until it survives."""
    for deaths in range(100):
        if not with_death(deaths, prepare, act, expect):
            assert deaths > 1
            return
    pytest.fail("there is no end of commits")


def with_death(commits: int, prepare: Step, act: Step, expect: Callable[[World], None]) -> bool:
    """Let the controller die after a number of commits; return whether it died."""
    dead = []

    async def scenario(world: World) -> None:
        await prepare(world)
        await world.settle()
        tree = world.active.tree
        tree.dies_after = tree.commits + commits
        await act(world)
        await world.settle()
        expect(world)
        check(world)
        dead.append(CONTROLLER not in world.nodes)

    in_world(scenario, CONTROLLER, 1, 2, 3, 4)
    return dead[0]


async def nothing(_: World) -> None:
    return


async def two_topics(world: World) -> None:
    await world.create_topic("t", {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1, 2]})
    await world.create_topic("u", {0: [4, 1]})


def test_a_topic_is_created() -> None:
    def expect(world: World) -> None:
        assert [world.state("t", index).leader for index in range(3)] == [1, 2, 3]
        assert world.state("u").leader == 4

    with_every_death(nothing, two_topics, expect)


def test_a_topic_grows() -> None:
    async def act(world: World) -> None:
        await world.grow_topic("u", {1: [1, 2], 2: [2, 3]})

    def expect(world: World) -> None:
        assert [world.state("u", index).leader for index in range(3)] == [4, 1, 2]

    with_every_death(two_topics, act, expect)


def test_a_topic_is_deleted() -> None:
    async def act(world: World) -> None:
        await world.delete_topic("t")

    def expect(world: World) -> None:
        for path in (topic_path("t"), "/config/topics/t", "/admin/delete_topics/t"):
            assert not world.exists(path)
        for number in (1, 2, 3):
            assert not any(partition[0] == "t" for partition in world.broker(number).told.replicas)

    with_every_death(two_topics, act, expect)


def test_a_leader_dies() -> None:
    async def act(world: World) -> None:
        await world.kill(1)

    def expect(world: World) -> None:
        for index in range(3):
            assert sorted(world.state("t", index).isr) == [2, 3]

    with_every_death(two_topics, act, expect)


def test_a_broker_stops() -> None:
    async def act(world: World) -> None:
        request = ControlledShutdownRequest(1, world.broker(1).epoch)
        for _ in range(3):
            try:
                await world.active.controller.controlled_shutdown(request)
            except (ApiError, ValueError):  # from no controller, or from one that died meanwhile
                await world.settle()
            else:
                break
        await world.kill(1)

    def expect(world: World) -> None:
        assert all(1 not in world.state("t", index).isr for index in range(3))

    with_every_death(two_topics, act, expect)


@pytest.mark.parametrize("target", [(4, 2), (1, 4), (1, 2)])
def test_a_partition_begins_to_move(target: tuple[int, ...]) -> None:
    async def act(world: World) -> None:
        for _ in range(3):
            try:
                await world.active.controller.alter_reassignments({("t", 0): target})
            except (ApiError, ValueError):
                await world.settle()
            else:
                break

    def expect(world: World) -> None:
        stored = world.assignment("t")
        going = set(stored.replicas[0]) - set(stored.removing.get(0, ()))
        assert going == set(target)
        if set(target) <= {1, 2}:
            assert stored.replicas[0] == target

    with_every_death(two_topics, act, expect)


def test_a_reassignment_is_cancelled() -> None:
    async def prepare(world: World) -> None:
        await two_topics(world)
        await world.settle()
        await world.active.controller.alter_reassignments({("t", 0): (4, 2)})

    async def act(world: World) -> None:
        for _ in range(3):
            try:
                await world.active.controller.alter_reassignments({("t", 0): None})
            except (ApiError, ValueError):
                await world.settle()
            else:
                break

    def expect(world: World) -> None:
        stored = world.assignment("t")
        assert (sorted(stored.replicas[0]), stored.adding, stored.removing) == ([1, 2, 3], {}, {})

    with_every_death(prepare, act, expect)


def test_a_partition_has_moved() -> None:
    async def prepare(world: World) -> None:
        await two_topics(world)
        await world.settle()
        await world.active.controller.alter_reassignments({("t", 0): (4, 2)})

    async def act(world: World) -> None:
        topic_id = world.context.topics["t"].topic_id
        for _ in range(3):
            try:
                response = await world.alter_isr(topic_id, "t", 0, [1, 2, 3, 4])
            except (ApiError, ValueError):
                await world.settle()
                continue
            assert response.topics[0].partitions[0].error_code in (0, 74, 95, 41)
            break

    def expect(world: World) -> None:
        stored = world.assignment("t")
        assert (stored.replicas[0], stored.adding, stored.removing) == ((4, 2), {}, {})
        assert sorted(world.state("t").isr) == [2, 4]
        for number in (1, 3):
            assert ("t", 0) not in world.broker(number).told.replicas

    with_every_death(prepare, act, expect)


@pytest.mark.parametrize("commits", range(30))
def test_a_controller_dies_as_it_takes_over(commits: int) -> None:
    async def scenario(world: World) -> None:
        await two_topics(world)
        await world.settle()
        await world.kill(3)
        await world.settle()
        for number in (1, 2):
            world.nodes[number].tree.dies_after = commits
        await world.kill(CONTROLLER)
        await world.settle()
        check(world)

    in_world(scenario, CONTROLLER, 3, 4, 1, 2)

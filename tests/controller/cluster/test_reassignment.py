"""Reassignment of partitions to other brokers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kbroker.controller.cluster.assigned_replicas import Replicas, in_transition
from kbroker.controller.cluster.context import Partition
from kbroker.controller.tree.znode import Create
from kbroker.controller.znodes import REASSIGNMENTS, encode_reassignments, topic_path
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import LeaderAndIsrRequest, StopReplicaRequest

from .world import FakeBroker, World, in_world

P = ("t", 0)


async def alter(world: World, target: Sequence[int] | None, partition: Partition = P) -> int:
    results = await world.active.controller.alter_reassignments({partition: target})
    assert list(results) == [partition]
    error = results[partition]
    return 0 if error is None else error.code


def leaderships(broker: FakeBroker) -> list[tuple[int, bool]]:
    return [
        (part.leader_epoch, part.is_new)
        for request in broker.requests
        if isinstance(request, LeaderAndIsrRequest)
        for topic in request.topic_states
        for part in topic.partition_states
    ]


def test_the_arithmetic_of_replicas() -> None:
    begun = in_transition(Replicas((1, 2)), (2, 3))
    assert begun == Replicas((2, 3, 1), adding=(3,), removing=(1,))
    assert (begun.origin, begun.target, begun.in_motion) == ((2, 1), (2, 3), True)
    assert in_transition(begun, begun.origin) == Replicas((2, 1))
    assert in_transition(begun, (4, 2)) == Replicas((4, 2, 1), adding=(4,), removing=(1,))
    assert not in_transition(Replicas((1, 2)), (1, 2)).in_motion


def test_a_partition_moves_step_by_step() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2], 1: [1, 2]})
        await world.settle()
        world.forget_requests()
        assert await alter(world, [2, 3]) == 0
        await world.settle()
        stored = world.assignment("t")
        assert (stored.replicas[0], stored.adding, stored.removing) == ((2, 3, 1), {0: (3,)}, {0: (1,)})
        assert stored.replicas[1] == (1, 2)
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1, 2))
        assert [leaderships(world.broker(number)) for number in (1, 2, 3)] == [[(1, False)], [(1, False)], [(1, True)]]
        assert world.broker(3).told.replicas[P].adding_replicas == [3]
        ongoing = await world.active.controller.list_reassignments(None)
        assert ongoing == {P: Replicas((2, 3, 1), (3,), (1,))}
        assert await world.active.controller.list_reassignments([("t", 1)]) == {}
        world.forget_requests()
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (2, 3, (2, 3))
        stored = world.assignment("t")
        assert (stored.replicas[0], stored.adding, stored.removing) == ((2, 3), {}, {})
        assert world.broker(1).told.deleted == [P]
        stops = [each for each in world.broker(1).requests if isinstance(each, StopReplicaRequest)]
        assert [each.topic_states[0].partition_states[0].delete_partition for each in stops] == [False, True]
        assert world.broker(1).told.metadata[P].replicas == [2, 3]
        assert world.broker(3).told.replicas[P].adding_replicas == []
        assert await world.active.controller.list_reassignments(None) == {}

    in_world(scenario, 1, 2, 3)


def test_a_leader_that_stays_keeps_on_leading() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [1, 3])
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.isr) == (1, (1, 3))
        assert world.assignment("t").replicas[0] == (1, 3)

    in_world(scenario, 1, 2, 3)


def test_a_reassignment_is_cancelled() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [2, 3])
        await world.settle()
        assert await alter(world, None) == 0
        await world.settle()
        stored = world.assignment("t")
        assert (stored.replicas[0], stored.adding, stored.removing) == ((2, 1), {}, {})  # in another order, as in Kafka
        assert world.broker(3).told.deleted == [P]
        assert world.state("t").isr == (1, 2)
        assert await alter(world, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

    in_world(scenario, 1, 2, 3)


def test_another_target_takes_the_place_of_the_first() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [2, 3])
        await alter(world, [2, 4])
        await world.settle()
        assert world.broker(3).told.deleted == [P]
        await world.alter_isr(topic_id, "t", 0, [1, 2, 4])
        await world.settle()
        assert world.assignment("t").replicas[0] == (2, 4)
        assert world.state("t").isr == (2, 4)

    in_world(scenario, 1, 2, 3, 4)


def test_what_cannot_be_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        for target in ([], [2, 2], [-1, 2], [1, 9]):
            assert await alter(world, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        started = time.process_time()
        assert await alter(world, range(2_000_000)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert time.process_time() - started < 0.5, "a target is looked at as far as it can be one"
        for partition in (("t", 7), ("nothing", 0)):
            assert await alter(world, [2, 1], partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await alter(world, None, ("nothing", 0)) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        results = await world.active.controller.alter_reassignments({P: [1]}, may_change_factor=False)
        error = results[P]
        assert error is not None
        assert error.code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert world.assignment("t").replicas == {0: (1, 2)}

    in_world(scenario, 1, 2)


def test_a_topic_is_deleted_only_after_its_reassignment() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [2, 3])
        await world.delete_topic("t")
        await world.settle()
        assert world.exists(topic_path("t"))
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        assert not world.exists(topic_path("t"))
        assert P in world.broker(3).told.deleted

    in_world(scenario, 1, 2, 3)


def test_a_tool_asks_by_a_znode() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2], 1: [1, 2]})
        await world.settle()
        asked = {("t", 0): (3, 2), ("t", 1): (2, 1), ("nothing", 0): (1,)}
        await world.tool.commit([Create(REASSIGNMENTS, encode_reassignments(asked))])
        await world.settle()
        assert world.assignment("t").replicas == {0: (3, 2, 1), 1: (2, 1)}
        assert b'"nothing"' not in world.data(REASSIGNMENTS)
        assert b'"partition":1' not in world.data(REASSIGNMENTS)  # a change of the order only is done immediately
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        assert not world.exists(REASSIGNMENTS)
        assert world.assignment("t").replicas[0] == (3, 2)
        await world.tool.commit([Create(REASSIGNMENTS, b"nonsense")])  # the watch is set again
        await world.settle()
        assert not world.exists(REASSIGNMENTS)

    in_world(scenario, 1, 2, 3)


def test_growth_by_somebody_else_is_kept() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [2, 3])
        await world.grow_topic("t", {1: [3, 1]})
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        assert world.assignment("t").replicas == {0: (2, 3), 1: (3, 1)}
        assert world.state("t", 1).leader == 3

    in_world(scenario, 1, 2, 3)


def test_a_target_that_dies_and_comes_back_is_told_again() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await alter(world, [2, 3])
        await world.kill(3)
        await world.settle()
        await world.start(3)
        assert world.broker(3).told.replicas[P].adding_replicas == [3]
        await world.alter_isr(topic_id, "t", 0, [1, 2, 3])
        await world.settle()
        assert world.assignment("t").replicas[0] == (2, 3)

    in_world(scenario, 1, 2, 3)

"""Topics that are created, grow and are deleted."""

from __future__ import annotations

from dataclasses import replace

from kbroker.controller.tree.znode import Create, Delete
from kbroker.controller.znodes import DELETE_TOPICS, Assignment, topic_path
from kbroker.protocol.messages.inter_broker import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

from .world import QUIET_CONFIG, World, in_world, kinds

P = ("t", 0)


def test_a_new_topic_is_begun_on_its_live_replicas() -> None:
    async def scenario(world: World) -> None:
        world.forget_requests()
        topic_id = await world.create_topic("t", {0: [4, 2, 1], 1: [4]})
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (2, 0, (2, 1), 1)
        assert world.data("/brokers/topics/t/partitions") == world.data("/brokers/topics/t/partitions/0") == b""
        leadership, metadata = world.broker(2).requests
        assert isinstance(leadership, LeaderAndIsrRequest)
        assert isinstance(metadata, UpdateMetadataRequest)
        [topic] = leadership.topic_states
        [part] = topic.partition_states
        assert (topic.topic_id, part.is_new, part.partition_epoch) == (topic_id, True, 0)
        assert kinds(world.broker(3).requests) == ["UpdateMetadata"]
        assert metadata.topic_states[0].partition_states[0].offline_replicas == [4]
        # A partition without a live replica waits for one.
        assert not world.exists("/brokers/topics/t/partitions/1/state")
        await world.start(4)
        assert world.state("t", 1).leader == 4
        assert world.broker(4).told.replicas["t", 1].is_new

    in_world(scenario, 1, 2, 3)


def test_a_topic_grows() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        world.forget_requests()
        await world.grow_topic("t", {1: [2, 1], 2: [1, 2]})
        await world.settle()
        assert [world.state("t", index).leader for index in range(3)] == [1, 2, 1]
        [told] = [each for each in world.broker(1).requests if isinstance(each, LeaderAndIsrRequest)]
        assert sorted(part.partition_index for part in told.topic_states[0].partition_states) == [1, 2]
        await world.grow_topic("t", {3: [2, 1]})  # the watch is set again
        await world.settle()
        assert world.state("t", 3).leader == 2

    in_world(scenario, 1, 2)


def test_a_topic_is_deleted_with_all_that_stands_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2], 1: [2, 3]})
        await world.create_topic("u", {0: [3, 1]})
        await world.settle()
        world.forget_requests()
        await world.delete_topic("t")
        await world.settle()
        for path in (topic_path("t"), "/config/topics/t", f"{DELETE_TOPICS}/t"):
            assert not world.exists(path)
        gone, stop, delete = world.broker(2).requests
        assert isinstance(gone, UpdateMetadataRequest)
        parts = gone.topic_states[0].partition_states
        assert {(part.leader, part.leader_epoch) for part in parts} == {(-2, 0)}
        for request, is_deletion in ((stop, False), (delete, True)):
            assert isinstance(request, StopReplicaRequest)
            stopped = request.topic_states[0].partition_states
            assert {(part.leader_epoch, part.delete_partition) for part in stopped} == {(-2, is_deletion)}
        assert sorted(world.broker(2).told.deleted) == [("t", 0), ("t", 1)]
        assert set(world.context.topics) == {"u"}
        assert world.broker(3).told.metadata.keys() == {("u", 0)}
        assert world.state("u").leader == 3

    in_world(scenario, 1, 2, 3)


def test_a_topic_of_the_same_name_is_another_one() -> None:
    async def scenario(world: World) -> None:
        first = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await world.delete_topic("t")
        await world.settle()
        second = await world.create_topic("t", {0: [2, 1]})
        await world.settle()
        assert first != second
        assert world.context.names == {second: "t"}
        assert world.broker(1).told.replicas[P].leader == 2

    in_world(scenario, 1, 2)


def test_a_topic_that_was_replaced_behind_the_controller_is_another_one() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        path, other = topic_path("t"), bytes(range(16))
        below = [f"{path}/partitions/0/state", f"{path}/partitions/0", f"{path}/partitions", path]
        again = Create(path, Assignment({0: (2, 1)}, other).encode())
        await world.tool.commit([*(Delete(each) for each in below), again])
        await world.settle()
        assert world.context.names == {other: "t"}
        assert world.state("t").leader == 2

    in_world(scenario, 1, 2)


def test_a_topic_that_vanishes_is_forgotten() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        path = topic_path("t")
        below = [f"{path}/partitions/0/state", f"{path}/partitions/0", f"{path}/partitions", path]
        await world.tool.commit([Delete(each) for each in below])
        await world.settle()
        assert world.context.topics == {}
        assert world.context.states == {}
        assert list(world.context.on_broker(1)) == []

    in_world(scenario, 1, 2)


def test_a_deletion_waits_for_a_dead_replica() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 3]})
        await world.settle()
        await world.kill(3)
        await world.settle()
        await world.delete_topic("t")
        await world.settle()
        assert world.exists(topic_path("t"))
        assert world.broker(1).told.deleted == []
        await world.start(3)
        assert not world.exists(topic_path("t"))
        assert world.broker(3).told.deleted == [P]
        assert world.broker(3).told.replicas == {}

    in_world(scenario, 1, 2, 3)


def test_a_deletion_waits_for_a_broker_that_dies_over_it() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 3]})
        await world.settle()
        world.broker(3).hang()
        await world.delete_topic("t")
        for _ in range(200):
            if world.broker(1).told.deleted:
                break
            await world.turn()
        assert world.broker(1).told.deleted == [P]
        await world.kill(3)
        await world.settle()
        assert world.exists(topic_path("t"))
        await world.start(3)
        assert not world.exists(topic_path("t"))
        assert world.broker(1).told.deleted == [P]  # once

    in_world(scenario, 1, 2, 3)


def test_a_replica_that_cannot_be_deleted_stops_the_deletion_until_its_broker_starts_again() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        world.broker(2).failed_dirs = {P}
        await world.delete_topic("t")
        await world.settle()
        assert world.exists(topic_path("t"))
        await world.kill(2)
        await world.start(2)
        assert not world.exists(topic_path("t"))

    in_world(scenario, 1, 2)


def test_what_does_not_exist_need_not_be_deleted() -> None:
    async def scenario(world: World) -> None:
        await world.delete_topic("nothing")
        await world.settle()
        assert not world.exists(f"{DELETE_TOPICS}/nothing")
        await world.tool.commit([Create(f"{DELETE_TOPICS}/again")])  # the watch is set again
        await world.settle()
        assert not world.exists(f"{DELETE_TOPICS}/again")

    in_world(scenario, 1)


def test_where_topics_are_not_deleted_the_wish_is() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1]})
        await world.settle()
        await world.delete_topic("t")
        await world.settle()
        assert not world.exists(f"{DELETE_TOPICS}/t")
        assert world.state("t").leader == 1

    in_world(scenario, 1, config=replace(QUIET_CONFIG, delete_topics=False))

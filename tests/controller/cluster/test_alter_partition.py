"""AlterPartition: which changes a leader is granted, and why others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.controller.tree.znode import SetData
from kbroker.controller.znodes import state_path
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    ControlledShutdownRequest,
)

from .world import World, in_world, kinds

P = ("t", 0)


async def ask(world: World, topic_id: bytes, isr: list[int], leader: int = 1, **fields: int) -> AlterPartitionResponse:
    request = world.isr_request(topic_id, "t", 0, isr, leader)
    for name, value in fields.items():
        setattr(request.topics[0].partitions[0], name, value)
    return await world.active.controller.alter_partition(request)


def outcome(response: AlterPartitionResponse) -> int:
    assert response.error_code == 0
    [topic] = response.topics
    [partition] = topic.partitions
    return partition.error_code


def test_a_leader_shrinks_and_expands_its_isr() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        world.forget_requests()
        response = await ask(world, topic_id, [1, 3])
        [topic] = response.topics
        [told] = topic.partitions
        assert topic.topic_id == topic_id
        assert (told.error_code, told.leader_id, told.leader_epoch, told.isr, told.partition_epoch) == (
            0,
            1,
            0,
            [1, 3],
            1,
        )
        state = world.state("t")
        assert (state.leader_epoch, state.isr) == (0, (1, 3))
        await world.settle()
        assert kinds(world.broker(2).requests) == ["UpdateMetadata"]  # and no LeaderAndIsr is sent
        assert world.broker(2).told.metadata[P].isr == [1, 3]
        assert outcome(await ask(world, topic_id, [1, 3, 2])) == 0
        assert world.state("t").isr == (1, 3, 2)

    in_world(scenario, 1, 2, 3)


def test_a_broker_that_is_not_known_or_has_another_epoch_is_refused() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        for broker, epoch in ((9, 1), (1, world.broker(1).epoch - 1), (1, world.broker(1).epoch + 1), (1, -1)):
            with pytest.raises(ApiError) as caught:
                await world.active.controller.alter_partition(AlterPartitionRequest(broker, epoch))
            assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH

    in_world(scenario, 1, 2)


def test_each_reason_has_its_error_and_changes_nothing() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        await ask(world, topic_id, [1, 2])
        await world.kill(3)
        await world.settle()
        before = world.state("t"), world.version("t")
        assert before[0].leader_epoch == 0
        assert outcome(await ask(world, bytes(16), [1])) == ErrorCode.UNKNOWN_TOPIC_ID
        assert outcome(await ask(world, topic_id, [1], partition_index=5)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert outcome(await ask(world, topic_id, [1], partition_epoch=2)) == ErrorCode.NOT_CONTROLLER
        assert outcome(await ask(world, topic_id, [1], leader_epoch=1)) == ErrorCode.NOT_CONTROLLER
        assert outcome(await ask(world, topic_id, [1], leader_epoch=-1)) == ErrorCode.FENCED_LEADER_EPOCH
        assert outcome(await ask(world, topic_id, [1], partition_epoch=0)) == ErrorCode.INVALID_UPDATE_VERSION
        assert outcome(await ask(world, topic_id, [1, 3])) == ErrorCode.INELIGIBLE_REPLICA
        assert outcome(await ask(world, topic_id, [1], leader_recovery_state=1)) == ErrorCode.INVALID_REQUEST
        # No leader requests this, and Kafka's controller on ZooKeeper would write it:
        assert outcome(await ask(world, topic_id, [2], leader=2)) == ErrorCode.INVALID_REQUEST
        assert outcome(await ask(world, topic_id, [2])) == ErrorCode.INVALID_REQUEST
        assert outcome(await ask(world, topic_id, [])) == ErrorCode.INVALID_REQUEST
        assert outcome(await ask(world, topic_id, [1, 1])) == ErrorCode.INVALID_REQUEST
        assert outcome(await ask(world, topic_id, [1, 4])) == ErrorCode.INVALID_REQUEST
        assert (world.state("t"), world.version("t")) == before

    in_world(scenario, 1, 2, 3, 4)


def test_what_is_so_already_is_granted_without_a_write() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await ask(world, topic_id, [1])
        response = await ask(world, topic_id, [1], partition_epoch=0)  # its first response was lost
        assert outcome(response) == 0
        assert response.topics[0].partitions[0].partition_epoch == world.version("t") == 1

    in_world(scenario, 1, 2)


def test_a_leader_elected_uncleanly_recovers_with_its_first_change() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [2, 1]}, {"unclean.leader.election.enable": "true"})
        await world.settle()
        await world.alter_isr(topic_id, "t", 0, [2])
        await world.kill(2)
        await world.settle()
        await world.start(2)
        assert world.state("t").recovering
        assert outcome(await ask(world, topic_id, [1, 2], leader_recovery_state=1)) == ErrorCode.INVALID_REQUEST
        assert outcome(await ask(world, topic_id, [1, 2])) == 0
        assert not world.state("t").recovering

    in_world(scenario, 1, 2)


def test_a_state_that_changed_behind_the_controller_is_an_older_version() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        changed = replace(world.state("t"), isr=(1, 2))
        request = world.isr_request(topic_id, "t", 0, [1, 3], 1)
        await world.tool.commit([SetData(state_path(*P), changed.encode())])
        assert outcome(await world.active.controller.alter_partition(request)) == ErrorCode.INVALID_UPDATE_VERSION
        assert outcome(await ask(world, topic_id, [1])) == 0  # it was read again

    in_world(scenario, 1, 2, 3)


def test_who_is_about_to_stop_is_not_taken_in() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await world.active.controller.controlled_shutdown(ControlledShutdownRequest(2, world.broker(2).epoch))
        assert world.state("t").isr == (1,)
        assert outcome(await ask(world, topic_id, [1, 2])) == ErrorCode.INELIGIBLE_REPLICA

    in_world(scenario, 1, 2)


def test_many_partitions_of_one_request_are_each_answered() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {index: [1, 2] for index in range(500)})
        await world.settle()
        wanted = [
            AlterPartitionData(partition_index=index, new_isr=[1], partition_epoch=0 if index % 2 else 7)
            for index in range(500)
        ]
        request = AlterPartitionRequest(1, world.broker(1).epoch, [AlterPartitionTopic(topic_id, wanted)])
        [topic] = (await world.active.controller.alter_partition(request)).topics
        errors = {each.partition_index: each.error_code for each in topic.partitions}
        assert errors == {index: 0 if index % 2 else ErrorCode.NOT_CONTROLLER for index in range(500)}
        assert world.state("t", 1).isr == (1,)
        assert world.state("t", 2).isr == (1, 2)

    in_world(scenario, 1, 2)

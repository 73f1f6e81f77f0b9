"""A broker that is about to stop, and the allocation of producer ids."""

from __future__ import annotations

import pytest

from kbroker.controller.tree.znode import SetData
from kbroker.controller.znodes import PRODUCER_IDS, ProducerIdBlock, read
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    ControlledShutdownRequest,
    RemainingPartition,
    StopReplicaRequest,
)

from .world import World, in_world


def test_what_a_broker_leads_goes_to_others_and_what_it_follows_is_stopped() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("led", {0: [2, 1, 3]})
        await world.create_topic("followed", {0: [1, 2]})
        await world.create_topic("alone", {0: [2]})
        await world.settle()
        world.forget_requests()
        request = ControlledShutdownRequest(2, world.broker(2).epoch)
        response = await world.active.controller.controlled_shutdown(request)
        assert (response.error_code, response.remaining_partitions) == (0, [])
        await world.settle()
        led, followed, alone = (world.state(name) for name in ("led", "followed", "alone"))
        assert (led.leader, led.leader_epoch, led.isr) == (1, 1, (1, 3))
        assert (followed.leader, followed.leader_epoch, followed.isr) == (1, 1, (1,))
        assert (alone.leader, alone.leader_epoch) == (2, 0)  # no other broker has it
        assert world.broker(2).told.stopped == {("followed", 0)}
        assert world.broker(2).told.replicas["led", 0].leader == 1
        stops = [each for each in world.broker(2).requests if isinstance(each, StopReplicaRequest)]
        assert not any(part.delete_partition for each in stops for part in each.topic_states[0].partition_states)
        await world.kill(2)
        await world.settle()
        assert world.state("led") == led  # it no longer costs an epoch
        assert world.state("alone").leader == -1
        await world.start(2)
        assert world.context.leaving == set()
        assert world.state("alone").leader == 2

    in_world(scenario, 1, 2, 3)


def test_what_nobody_else_has_in_sync_remains() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [2, 1]})
        await world.settle()
        await world.alter_isr(topic_id, "t", 0, [2])
        request = ControlledShutdownRequest(2, world.broker(2).epoch)
        response = await world.active.controller.controlled_shutdown(request)
        assert response.remaining_partitions == [RemainingPartition("t", 0)]
        assert world.state("t").leader == 2

    in_world(scenario, 1, 2)


def test_two_that_stop_at_once_do_not_lead_for_each_other() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [2, 3, 1]})
        await world.settle()
        for number in (3, 2):
            request = ControlledShutdownRequest(number, world.broker(number).epoch)
            assert (await world.active.controller.controlled_shutdown(request)).remaining_partitions == []
        assert (world.state("t").leader, world.state("t").isr) == (1, (1,))

    in_world(scenario, 1, 2, 3)


def test_who_is_not_known_or_of_an_older_epoch_is_refused() -> None:
    async def scenario(world: World) -> None:
        controller = world.active.controller
        cases = [
            (ControlledShutdownRequest(9, 5), ErrorCode.UNKNOWN_SERVER_ERROR),
            (ControlledShutdownRequest(9, -1), ErrorCode.BROKER_NOT_AVAILABLE),
            (ControlledShutdownRequest(1, world.broker(1).epoch - 1), ErrorCode.STALE_BROKER_EPOCH),
        ]
        for request, code in cases:
            with pytest.raises(ApiError) as caught:
                await controller.controlled_shutdown(request)
            assert caught.value.code is code
        assert world.context.leaving == set()

    in_world(scenario, 1)


async def block(world: World, broker: int) -> tuple[int, int]:
    request = AllocateProducerIdsRequest(broker, world.broker(broker).epoch)
    response = await world.active.controller.allocate_producer_ids(request)
    assert response.error_code == 0
    return response.producer_id_start, response.producer_id_len


def test_blocks_of_producer_ids_follow_each_other_whoever_is_the_controller() -> None:
    async def scenario(world: World) -> None:
        assert await block(world, 1) == (0, 1000)
        assert await block(world, 2) == (1000, 1000)
        stored = read(PRODUCER_IDS, world.data(PRODUCER_IDS), ProducerIdBlock.decode)
        assert stored == ProducerIdBlock(2, 1000, 1999)
        world.active.tree.loses_answers = 1
        assert (await block(world, 2))[0] in (2000, 3000)  # a block may be lost, but none is allocated twice
        await world.tool.commit([SetData(PRODUCER_IDS, ProducerIdBlock(7, 8000, 8999).encode())])
        assert await block(world, 2) == (9000, 1000)
        await world.kill(1)
        await world.settle()
        assert await block(world, 2) == (10000, 1000)

    in_world(scenario, 1, 2)


def test_producer_ids_are_given_to_brokers_that_are_there() -> None:
    async def scenario(world: World) -> None:
        controller = world.active.controller
        cases = [
            (AllocateProducerIdsRequest(9, 5), ErrorCode.BROKER_ID_NOT_REGISTERED),
            (AllocateProducerIdsRequest(1, world.broker(1).epoch + 1), ErrorCode.STALE_BROKER_EPOCH),
        ]
        for request, code in cases:
            with pytest.raises(ApiError) as caught:
                await controller.allocate_producer_ids(request)
            assert caught.value.code is code
        own = AllocateProducerIdsRequest(1, world.broker(1).epoch)
        for data in (b"{", ProducerIdBlock(1, 2**63 - 1001, 2**63 - 1).encode()):
            await world.tool.commit([SetData(PRODUCER_IDS, data)])
            with pytest.raises(ApiError) as caught:
                await controller.allocate_producer_ids(own)
            assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR

    in_world(scenario, 1)

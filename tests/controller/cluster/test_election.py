"""Who is the controller: elections, terms that end, and what a replaced controller can no longer do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kbroker.controller.cluster.brokers import open_channel
from kbroker.controller.cluster.fenced_tree import ControllerMoved, FencedTree, SteadyTree, claim
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import (
    Change,
    Check,
    Create,
    Delete,
    Done,
    SessionExpired,
    SetData,
    Unreachable,
)
from kbroker.controller.znodes import CONTROLLER, CONTROLLER_EPOCH, ControllerNode, Features, read
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
)

from .world import WatchedTree, World, in_world, run, short_sleep, until


def test_the_first_broker_is_elected_by_two_znodes_in_one() -> None:
    async def scenario(world: World) -> None:
        assert world.active.number == 1
        node = read(CONTROLLER, world.data(CONTROLLER), ControllerNode.decode)
        assert (node.broker_id, node.kraft_controller_epoch) == (1, -1)
        found = world.ensemble.read(CONTROLLER_EPOCH)
        assert found is not None
        assert (found[0].data, found[0].stat.version) == (b"1", 1)  # value and version also change together in Kafka
        first, claimed = world.active.tree.log[:2]
        assert first == (Create(CONTROLLER_EPOCH, b"0"),)
        assert [type(each) for each in claimed] == [Create, SetData]
        assert world.nodes[2].controller.epoch == 0
        assert world.client_ids == {"1"}
        assert read("/feature", world.data("/feature"), Features.decode) == Features({})

    in_world(scenario, 1, 2)


def test_every_other_write_goes_with_a_check_of_the_epoch() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        later = world.active.tree.log[2:]
        assert later
        assert all(changes[0] == Check(CONTROLLER_EPOCH, 1) for changes in later)

    in_world(scenario, 1, 2)


def test_of_several_that_try_one_is_elected() -> None:
    async def scenario(world: World) -> None:
        await world.start(1, 2, 3, 4)
        for _ in range(3):
            epoch = world.controller_epoch()
            await world.kill(world.active.number)
            await world.settle()
            assert world.active.controller.epoch == world.controller_epoch() == epoch + 1

    in_world(scenario)


def test_a_claim_whose_answer_was_lost_is_still_won() -> None:
    async def scenario() -> None:
        tree = WatchedTree(MemoryEnsemble().connect())
        await tree.commit([Create(CONTROLLER_EPOCH, b"7")])
        tree.loses_answers = 1
        own = await claim(SteadyTree(tree, short_sleep), 1, 0)
        assert own is not None
        assert own.epoch == 8
        await own.commit(SetData(CONTROLLER, b"{}"))

    run(scenario())


def test_a_race_that_was_lost_is_not_taken_for_won() -> None:
    async def scenario() -> None:
        ensemble = MemoryEnsemble()
        first, second = (SteadyTree(ensemble.connect(), short_sleep) for _ in range(2))
        claims = await asyncio.gather(claim(first, 1, 0), claim(second, 2, 0))
        assert sorted(claim is None for claim in claims) == [False, True]

    run(scenario())


def test_a_replaced_controller_writes_nothing_more() -> None:
    async def scenario() -> None:
        ensemble = MemoryEnsemble()
        old = ensemble.connect()
        first = await claim(SteadyTree(old, short_sleep), 1, 0)
        assert first is not None
        await first.create("/a")
        ensemble.end(old.session_id)  # the ensemble has ended the session, and the old controller does not know it yet
        second = await claim(SteadyTree(ensemble.connect(), short_sleep), 2, 0)
        assert second is not None
        assert second.epoch == first.epoch + 1
        for write in (
            first.create("/b"),
            first.set("/a", b"old", 0),
            first.delete("/a"),
            first.commit(Delete(CONTROLLER)),
        ):
            with pytest.raises(ControllerMoved):
                await write
        assert ensemble.read("/b") is None
        assert await second.set("/a", b"new", 0) == 1

    run(scenario())


def test_a_fenced_controller_resigns_and_answers_so() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        old = world.active
        # Only the ensemble considers the session lost: the controller still believes in it.
        found = world.ensemble.read(CONTROLLER_EPOCH)
        assert found is not None
        await world.tool.commit([SetData(CONTROLLER_EPOCH, b"9", found[0].stat.version)])
        request = world.isr_request(topic_id, "t", 0, [1], leader=1)
        with pytest.raises(ApiError) as caught:
            await old.controller.alter_partition(request)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        assert world.state("t").isr == (1, 2)
        await world.settle()
        assert world.active.controller.epoch == 10  # a controller was elected, perhaps the same one

    in_world(scenario, 1, 2)


def test_a_controller_whose_znode_is_deleted_gives_way_to_the_next() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Delete(CONTROLLER)])
        await until(lambda: world.controller_epoch() == 2)
        await world.settle()
        assert world.active.controller.epoch == 2

    in_world(scenario, 1, 2)


def test_with_the_session_the_term_ends_and_the_broker_may_be_elected_anew() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        before = world.broker(1).epoch
        world.nodes[1].tree.tree.expire()
        assert not world.nodes[1].controller.is_active
        await world.settle()
        assert world.active.number == 2
        assert world.broker(1).epoch > before
        assert world.context.brokers[1].epoch == world.broker(1).epoch
        assert set(world.broker(1).told.live) == {1, 2}

    in_world(scenario, 1, 2)


def test_who_waits_for_an_answer_hears_of_the_expiry() -> None:
    async def scenario(world: World) -> None:
        controller = world.active.controller
        world.active.tree.tree.cut()
        asked = [
            asyncio.ensure_future(controller.allocate_producer_ids(AllocateProducerIdsRequest(1, 1))) for _ in range(3)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.active.tree.tree.expire()
        world.nodes[1].tree.tree.heal()
        for each in asked:
            with pytest.raises(ApiError) as caught:
                await each
            assert caught.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH)

    in_world(scenario, 1)


def test_a_lost_connection_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        node = world.active
        node.tree.tree.cut()
        asked = asyncio.ensure_future(world.alter_isr(topic_id, "t", 0, [1]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not asked.done()
        node.tree.tree.heal()
        assert (await asked).topics[0].partitions[0].isr == [1]
        await world.create_topic("u", {0: [2, 1]})  # the watches that the lost connection fired are set again
        await world.settle()
        await world.grow_topic("t", {1: [2, 1]})
        await world.settle()
        assert (world.state("u").leader, world.state("t", 1).leader) == (2, 2)

    in_world(scenario, 1, 2)


def test_nothing_of_an_ended_session_is_asked_in_the_next() -> None:
    async def scenario() -> None:
        tree = MemoryEnsemble().connect()
        steady = SteadyTree(tree, short_sleep)
        own = await claim(steady, 1, 0)
        assert isinstance(own, FencedTree)
        tree.expire()
        with pytest.raises(SessionExpired):
            await own.commit(SetData(CONTROLLER_EPOCH, b"5"))

    run(scenario())


def test_a_broker_that_is_not_the_controller_says_so() -> None:
    async def scenario(world: World) -> None:
        other = world.nodes[2].controller
        with pytest.raises(ApiError) as caught:
            await other.alter_partition(AlterPartitionRequest(1, 1))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError) as caught:
            await other.controlled_shutdown(ControlledShutdownRequest(1, 1))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        with pytest.raises(ApiError) as caught:
            await other.allocate_producer_ids(AllocateProducerIdsRequest(1, 1))
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        for failing in (other.alter_reassignments({}), other.list_reassignments(None)):
            with pytest.raises(ApiError) as caught:
                await failing
            assert caught.value.code is ErrorCode.NOT_CONTROLLER
        [(partition, error)] = (await other.elect_leaders(0, [("t", 0)])).items()
        assert partition == ("t", 0)
        assert isinstance(error, ApiError)
        assert error.code is ErrorCode.NOT_CONTROLLER

    in_world(scenario, 1, 2)


def test_who_cannot_take_over_lets_others_try() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create("/feature", b"nonsense")])
        await world.start_unsettled(1)
        await until(lambda: world.exists(CONTROLLER_EPOCH) and world.controller_epoch() >= 3)
        found = world.ensemble.read("/feature")
        assert found is not None
        await world.tool.commit([SetData("/feature", Features({}).encode())])
        await world.settle()
        assert world.active.number == 1

    in_world(scenario)


def test_an_epoch_that_cannot_be_read_is_waited_out() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(CONTROLLER_EPOCH, b"nonsense")])
        await world.start_unsettled(1)
        for _ in range(500):
            await world.turn()
        assert not world.exists(CONTROLLER)
        await world.tool.commit([SetData(CONTROLLER_EPOCH, b"41")])
        await world.settle()
        assert world.active.controller.epoch == 42

    in_world(scenario)


def test_what_a_term_of_this_session_has_left_is_taken_away() -> None:
    async def scenario(world: World) -> None:
        controller = world.active.controller
        controller.expired()  # the session is still alive: somebody was mistaken
        controller.renewed()
        await world.settle()
        assert world.active.controller.epoch == 2

    in_world(scenario, 1)


def test_what_is_taken_away_is_never_a_later_controllers_znode() -> None:
    async def scenario(world: World) -> None:
        tree, lost = world.nodes[1].tree, []
        plain = tree.commit

        async def commit(changes: Sequence[Change]) -> list[Done]:
            done = await plain(changes)
            if Delete(CONTROLLER) in changes and not lost:
                lost.append(changes)
                await until(lambda: world.nodes[2].controller.is_active)
                raise Unreachable("the answer was lost")
            return done

        tree.commit = commit  # type: ignore[method-assign]
        controller = world.active.controller
        controller.expired()
        controller.renewed()
        await until(lambda: bool(lost))
        await world.settle()
        assert (world.active.number, world.controller_epoch()) == (2, 2)
        assert not controller.is_active

    in_world(scenario, 1, 2)


def test_a_closed_controller_does_nothing_and_another_is_elected() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        await world.kill(1)
        await world.settle()
        assert world.active.number == 2
        assert world.state("t").leader == 2

    in_world(scenario, 1, 2)


def test_work_that_outlives_its_term_tells_nobody_anything() -> None:
    async def scenario(world: World) -> None:
        term = world.active.controller._term
        assert term is not None
        world.active.controller.expired()
        world.forget_requests()
        open_channel(term, 2)
        await term.notify()
        for _ in range(20):
            await world.turn()
        assert world.broker(2).requests == []
        assert term.channels._channels == {}

    in_world(scenario, 1, 2)

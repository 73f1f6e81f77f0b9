"""The beginning of a controller's term, and brokers that join, leave, return and change."""

from __future__ import annotations

from dataclasses import replace

from kbroker.controller.cluster.channels import MOST_METADATA
from kbroker.controller.tree.znode import Create, Delete, SetData
from kbroker.controller.znodes import (
    BROKER_IDS,
    LOG_DIR_EVENT,
    LOG_DIR_EVENTS,
    Assignment,
    encode_log_dir_event,
    state_path,
    topic_path,
)
from kbroker.protocol.messages.inter_broker import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from kbroker.protocol.wire import ZERO_UUID

from .world import World, in_world, kinds, until

P = ("t", 0)


def test_the_live_brokers_are_told_before_anything_else() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        world.forget_requests()
        await world.kill(1)
        await world.settle()
        first, *others = world.broker(3).requests
        assert isinstance(first, UpdateMetadataRequest)
        assert (first.controller_id, first.controller_epoch, first.topic_states) == (2, 2, [])
        assert first.broker_epoch == world.broker(3).epoch
        assert [each.id for each in first.live_brokers] == [2, 3]
        # Then all replicas receive, once, the result of the election.
        assert kinds(others) == ["LeaderAndIsr", "UpdateMetadata"]
        assert others[0].topic_states[0].partition_states[0].leader_epoch == 1
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr, state.controller_epoch) == (2, 1, (2, 3), 2)
        assert world.version("t") == 1

    in_world(scenario, 1, 2, 3)


def test_a_broker_that_restarts_while_there_is_no_controller_leads_no_more() -> None:
    """It may have lost its disk, and the other in-sync replicas would delete their records."""

    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2, 3], 1: [2, 1], 2: [1], 3: [1, 9]})
        await world.settle()
        await world.kill(9)
        await world.kill(1)
        await world.start_unsettled(1)
        await world.settle()
        states = [world.state("t", index) for index in range(4)]
        assert [(each.leader, each.isr) for each in states[:3]] == [(2, (2, 3)), (2, (2,)), (1, (1,))]
        assert states[3].leader == 1, "no other in-sync replica is online"
        assert [each.leader_epoch > 0 for each in states[:2]] == [True, True]

    in_world(scenario, 9, 1, 2, 3)


def test_brokers_that_all_restart_lead_again() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        for number in (1, 2, 3):
            await world.kill(number)
        for number in (3, 2, 1):
            await world.start_unsettled(number)
        await world.settle()
        assert world.state("t").isr == (1, 2, 3) or world.state("t").leader == 1

    in_world(scenario, 1, 2, 3)


def test_a_topic_without_id_gets_one() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(topic_path("old"), Assignment({0: (1,)}, None).encode())])
        await world.start(1)
        topic_id = world.assignment("old").topic_id
        assert topic_id not in (None, ZERO_UUID)
        [told] = [each for each in world.broker(1).requests if isinstance(each, LeaderAndIsrRequest)]
        assert told.topic_states[0].topic_id == topic_id
        # A tool that knows no topic ids writes the znode without it: the topic keeps its id.
        await world.tool.commit([SetData(topic_path("old"), Assignment({0: (1,), 1: (1,)}, None).encode())])
        await world.settle()
        assert world.assignment("old").topic_id == topic_id
        assert world.state("old", 1).leader == 1

    in_world(scenario)


def test_what_cannot_be_read_is_passed_over() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(topic_path("bad"), b"[")])
        await world.tool.commit([Create(f"{BROKER_IDS}/7", b"nonsense")])
        await world.tool.commit([Create(f"{BROKER_IDS}/x", b"")])
        await world.start(1)
        assert set(world.context.brokers) == {1}
        assert world.context.topics == {}
        await world.tool.commit([SetData(topic_path("bad"), Assignment({0: (1,)}, bytes(range(16))).encode())])
        await world.settle()
        assert world.state("bad").leader == 1
        registration = world.nodes[1].registration()
        await world.tool.commit([SetData(f"{BROKER_IDS}/7", registration.encode())])
        await until(lambda: set(world.context.brokers) == {1, 7})

    in_world(scenario)


def test_metadata_of_very_many_partitions_comes_in_several_requests() -> None:
    async def scenario(world: World) -> None:
        for name in ("t", "u"):
            await world.create_topic(name, {index: [1] for index in range(MOST_METADATA - 10)})
        await world.settle()
        await world.start(2)
        requests = [each for each in world.broker(2).requests if isinstance(each, UpdateMetadataRequest)]
        counts = [sum(len(topic.partition_states) for topic in each.topic_states) for each in requests]
        assert counts == [MOST_METADATA, MOST_METADATA - 20]
        assert len(world.broker(2).told.metadata) == 2 * MOST_METADATA - 20

    in_world(scenario, 1)


def test_stale_notifications_are_removed() -> None:
    async def scenario(world: World) -> None:
        await world.tool.commit([Create(LOG_DIR_EVENT, encode_log_dir_event(1), sequential=True)])
        await world.start(1)
        found = world.ensemble.read(LOG_DIR_EVENTS)
        assert found is not None
        assert found[1] == []

    in_world(scenario)


def test_a_new_broker_is_told_everything_and_the_others_of_it() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [3, 1], 1: [1, 2]})
        await world.settle()
        assert world.state("t").leader == 1
        world.forget_requests()
        await world.start(3)
        old = world.broker(1).requests[0]
        assert isinstance(old, UpdateMetadataRequest)
        assert old.topic_states == []
        assert [each.id for each in old.live_brokers] == [1, 2, 3]
        everything, leadership, *_ = world.broker(3).requests
        assert isinstance(everything, UpdateMetadataRequest)
        assert sum(len(topic.partition_states) for topic in everything.topic_states) == 2
        assert isinstance(leadership, LeaderAndIsrRequest)
        [topic] = leadership.topic_states
        [part] = topic.partition_states
        assert (part.partition_index, part.leader, part.replicas, part.is_new) == (0, 1, [3, 1], False)
        assert [(each.broker_id, each.port) for each in leadership.live_leaders] == [(1, 9001)]
        assert world.state("t").isr == (1,)  # it becomes in sync by itself

    in_world(scenario, 1, 2)


def test_a_dead_leader_costs_one_leader_epoch() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [3, 2, 1]})
        await world.settle()
        world.forget_requests()
        await world.kill(3)
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (2, 1, (2, 1))
        assert world.broker(2).told.replicas[P].leader == 2
        assert world.broker(1).told.metadata[P].offline_replicas == [3]
        assert set(world.broker(1).told.live) == {1, 2}

    in_world(scenario, 1, 2, 3)


def test_a_dead_follower_leaves_the_isr_with_another_leader_epoch() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        await world.kill(3)
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1, 2))
        assert world.broker(1).told.replicas[P].leader_epoch == 1

    in_world(scenario, 1, 2, 3)


def test_the_last_in_sync_stays_so_and_leads_again_when_it_is_back() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [2, 1]})
        await world.settle()
        await world.alter_isr(topic_id, "t", 0, [2])
        await world.kill(2)
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (-1, 1, (2,))
        assert world.broker(1).told.metadata[P].leader == -1
        await world.start(3)  # a broker that joins is no reason for an election
        assert world.state("t").leader == -1
        await world.start(2)
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (2, 2, (2,))
        assert world.broker(2).told.replicas[P].leader == 2

    in_world(scenario, 1, 2)


def test_a_topic_that_would_rather_lose_records_is_led_uncleanly() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [2, 1]}, {"unclean.leader.election.enable": "true"})
        await world.settle()
        await world.alter_isr(topic_id, "t", 0, [2])
        await world.kill(2)
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.isr, state.recovering) == (1, (1,), True)
        assert world.broker(1).told.replicas[P].leader_recovery_state == 1

    in_world(scenario, 1, 2)


def test_enabling_unclean_elections_makes_the_controller_try_again() -> None:
    async def scenario(world: World) -> None:
        for name in ("t", "u"):
            topic_id = await world.create_topic(name, {0: [2, 1]})
            await world.settle()
            await world.alter_isr(topic_id, name, 0, [2])
        await world.kill(2)
        await world.settle()
        controller = world.active.controller
        await world.tool.commit(
            [SetData("/config/topics/u", b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}')]
        )
        controller.unclean_election_enabled("u")
        await world.settle()
        assert (world.state("u").leader, world.state("t").leader) == (1, -1)
        assert controller.unclean_elections == 1
        controller.configure(replace(world.config, unclean_leader_election=True))
        await world.settle()
        assert world.state("t").leader == 1

    in_world(scenario, 1, 2)


def test_a_broker_that_comes_back_before_it_was_missed_has_failed_and_started() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [2, 1]})
        await world.settle()
        world.forget_requests()
        old = world.broker(2).epoch
        path = f"{BROKER_IDS}/2"
        registration = world.nodes[2].registration().encode()
        # In one transaction, so that nobody sees the znode missing.
        await world.nodes[2].tree.tree.commit([Delete(path), Create(path, registration, ephemeral=True)])
        found = world.ensemble.read(path)
        assert found is not None
        world.broker(2).epoch = found[0].stat.created
        await world.settle()
        assert world.broker(2).epoch > old
        assert world.context.brokers[2].epoch == world.broker(2).epoch
        state = world.state("t")
        assert (state.leader, state.leader_epoch, state.isr) == (1, 1, (1,))
        assert world.broker(2).told.replicas[P].leader == 1

    in_world(scenario, 1, 2)


def test_another_address_of_a_broker_is_told_to_all() -> None:
    async def scenario(world: World) -> None:
        world.nodes[2].port = 9902
        await world.nodes[2].tree.tree.commit([SetData(f"{BROKER_IDS}/2", world.nodes[2].registration().encode())])
        await world.settle()
        assert world.broker(1).told.live[2] == 9902
        assert world.broker(2).told.live[2] == 9902

    in_world(scenario, 1, 2)


def test_a_failed_directory_is_found_out_and_done_without() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [2, 1], 1: [2, 1]})
        await world.settle()
        world.broker(2).failed_dirs = {("t", 1)}
        await world.nodes[2].tree.tree.commit([Create(LOG_DIR_EVENT, encode_log_dir_event(2), sequential=True)])
        await world.settle()
        assert world.state("t", 0).leader == 2
        state = world.state("t", 1)
        assert (state.leader, state.isr) == (1, (1,))
        assert world.broker(1).told.metadata["t", 1].offline_replicas == [2]
        found = world.ensemble.read(LOG_DIR_EVENTS)
        assert found is not None
        assert found[1] == []
        stops = [each for each in world.broker(2).requests if isinstance(each, StopReplicaRequest)]
        assert [each.topic_states[0].partition_states[0].partition_index for each in stops] == [1]

    in_world(scenario, 1, 2)


def test_a_broker_that_hangs_holds_up_nobody_else_and_hears_the_newest_later() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2, 3]})
        await world.settle()
        world.forget_requests()
        world.broker(3).hang()
        isr = [[1, 2], [1, 2, 3]]
        for number in range(200):
            await world.alter_isr(topic_id, "t", 0, isr[number % 2])
        term = world.active.controller._term
        assert term is not None
        assert len(term.channels._channels[3]._queue) <= 20
        world.broker(3).go_on()
        await world.settle()
        assert len(world.broker(3).requests) < 40
        assert world.broker(3).told.metadata[P].zk_version == world.version("t") == 200

    in_world(scenario, 1, 2, 3)


def test_a_state_that_was_changed_behind_the_controller_is_read_and_decided_anew() -> None:
    async def scenario(world: World) -> None:
        await world.create_topic("t", {0: [3, 2, 1]})
        await world.settle()
        changed = replace(world.state("t"), isr=(3, 1))
        await world.tool.commit([SetData(state_path(*P), changed.encode())])
        await world.kill(3)
        await world.settle()
        state = world.state("t")
        assert (state.leader, state.isr) == (1, (1,))

    in_world(scenario, 1, 2, 3)


def test_a_write_whose_answer_was_lost_is_not_done_twice() -> None:
    async def scenario(world: World) -> None:
        topic_id = await world.create_topic("t", {0: [1, 2]})
        await world.settle()
        world.active.tree.loses_answers = 1
        response = await world.alter_isr(topic_id, "t", 0, [1])
        assert response.topics[0].partitions[0].error_code == 0
        assert world.version("t") == 1
        await world.alter_isr(topic_id, "t", 0, [1, 2])
        world.active.tree.loses_answers = 1
        await world.kill(2)
        await world.settle()
        assert (world.state("t").leader_epoch, world.version("t")) == (1, 3)

    in_world(scenario, 1, 2)

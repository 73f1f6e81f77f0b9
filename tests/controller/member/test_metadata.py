"""What a member asks of the others, and when it says that it is done."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.controller import znodes
from kbroker.controller.member.metadata_cache import LEADER_DURING_DELETE
from kbroker.controller.tree.znode import SetData
from kbroker.divided import in_slices
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataTopicState
from tests.controller.member.test_metadata_cache import partition
from tests.controller.member.world import PATIENCE_S, gone, members, until, written


def run(scenario, count=1):
    async def inside():
        async with asyncio.timeout(PATIENCE_S), members(count) as found:
            await scenario(*found)

    asyncio.run(inside())


async def created(member, *plans, timeout_ms=PATIENCE_S * 1000):
    """Run the work of creating topics as the dispatcher does: what it yields is awaited."""
    work = member.metadata.put_in_pieces(plans, timeout_ms)
    try:
        waiting = next(work)
        while True:
            waiting = work.send(await waiting)
    except StopIteration as end:
        return end.value


def test_a_topic_is_created_once_all_its_partitions_are_led():
    async def scenario(member):
        plan = member.metadata.plan_topic("t", 3, 2, None, {"retention.ms": "5"})
        asked = asyncio.create_task(created(member, plan))
        await written(member, znodes.topic_path("t"))
        assert not asked.done()
        known = await member.obey("t")
        assert await asked == {}
        assert known.topic_id == plan.topic_id
        assert all(len(set(each)) == 2 for each in known.replicas.values())
        topic = member.metadata.state.topics["t"]
        assert topic.configs == {"retention.ms": "5"}
        assert [each.leader >= 0 for each in topic.partitions] == [True] * 3

    run(scenario)


def test_a_topic_without_leaders_is_answered_when_the_time_is_over():
    async def scenario(member):
        plan = member.metadata.plan_topic("t", 1, 1)
        refused = await created(member, plan, timeout_ms=1)
        assert refused["t"].code == ErrorCode.REQUEST_TIMED_OUT
        assert await member.tree.get(znodes.topic_path("t")) is not None

    run(scenario)


def test_a_name_that_another_broker_has_taken_meanwhile():
    async def scenario(member, other):
        plan, same = member.metadata.plan_topic("t", 1, 1), other.metadata.plan_topic("t", 1, 1)
        asked = asyncio.create_task(created(member, plan))
        await written(member, znodes.topic_path("t"))
        assert (await created(other, same))["t"].code == ErrorCode.TOPIC_ALREADY_EXISTS
        await member.obey("t")
        assert await asked == {}

    run(scenario, 2)


def test_more_replicas_than_brokers():
    async def scenario(member):
        with pytest.raises(ApiError, match="Replication factor: 4 larger than available brokers: 3"):
            member.metadata.plan_topic("t", 1, 4)

    run(scenario)


def test_only_the_controller_decides_about_topics():
    async def scenario(member, other):
        member.metadata.check_is_controller()
        with pytest.raises(ApiError) as refused:
            other.metadata.check_is_controller()
        assert refused.value.code == ErrorCode.NOT_CONTROLLER

    run(scenario, 2)


def test_a_topic_grows_by_what_is_new_alone():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 2, 2)))
        await written(member, znodes.topic_path("t"))
        before = await member.obey("t")
        await asked
        member.metadata.put_topics([member.metadata.plan_growth("t", 4, None)])
        waiting = asyncio.ensure_future(member.metadata.published())
        await written(member, znodes.topic_path("t"), 1)
        assert not waiting.done()
        after = await member.obey("t")
        await waiting
        assert member.metadata.published() is None
        assert {index: after.replicas[index] for index in before.replicas} == before.replicas
        assert len(after.replicas) == 4
        assert after.topic_id == before.topic_id

    run(scenario)


def test_a_topic_that_is_being_moved_does_not_grow():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await written(member, znodes.topic_path("t"))
        known = await member.obey("t")
        await asked
        moving = znodes.Assignment(known.replicas, known.topic_id, adding={0: (3,)})
        await member.tree.commit([SetData(znodes.topic_path("t"), moving.encode())])
        member.metadata.put_topics([member.metadata.plan_growth("t", 2, None)])
        with pytest.raises(ApiError) as refused:
            await member.metadata.published()
        assert refused.value.code == ErrorCode.REASSIGNMENT_IN_PROGRESS

    run(scenario)


def test_a_topic_is_deleted_once_this_broker_has_heard_of_it():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t.a", 1, 1)))
        await written(member, znodes.topic_path("t.a"))
        known = await member.obey("t.a")
        await asked
        with pytest.raises(ApiError, match="collides"):
            member.metadata.check_new_name("t_a")
        member.metadata.delete_topics(["t.a"])
        waiting = asyncio.ensure_future(member.metadata.published())
        await written(member, f"{znodes.DELETE_TOPICS}/t.a")
        assert not waiting.done()
        await gone(member.tree, "t.a")
        doomed = [partition(0, leader=LEADER_DURING_DELETE)]
        await member.tell(UpdateMetadataTopicState(topic_name="t.a", topic_id=known.topic_id, partition_states=doomed))
        await waiting
        member.metadata.check_new_name("t_a")

    run(scenario)


def test_a_coordinators_topic_is_created_once():
    async def scenario(member):
        member.metadata.auto_create("__consumer_offsets")
        member.metadata.auto_create("__consumer_offsets")
        waiting = asyncio.ensure_future(member.metadata.published())
        await written(member, znodes.topic_path("__consumer_offsets"))
        known = await member.obey("__consumer_offsets")
        await waiting
        assert len(known.replicas) == 2

    run(scenario)


def test_a_coordinators_topic_waits_for_enough_brokers():
    async def scenario(member):
        await member.tell(brokers=(1,))
        member.metadata.auto_create("__consumer_offsets")
        assert member.metadata.published() is None

    run(scenario)


def test_configs_reach_all_members():
    async def scenario(member, other):
        for name, configs in (("", {"log.retention.ms": "7"}), ("2", {"log.cleaner.threads": "2"}), ("", {})):
            heard = []
            other.metadata.subscribe(lambda _old, new, heard=heard: heard.append(new))
            member.metadata.set_configs("brokers", name, configs)
            await member.metadata.published()
            assert member.metadata.state.broker_configs.get(name, {}) == configs
            await until(lambda name=name, configs=configs: other.metadata.state.broker_configs.get(name, {}) == configs)
            assert heard

    run(scenario, 2)


def test_configs_of_topics():
    async def scenario(member, other):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await written(member, znodes.topic_path("t"))
        await member.obey("t")
        await other.obey("t")
        await asked
        other.metadata.set_configs("topics", "t", {"retention.ms": "9"})
        await other.metadata.published()
        await until(lambda: member.metadata.state.topics["t"].configs == {"retention.ms": "9"})

    run(scenario, 2)


def test_configs_of_what_a_cluster_does_not_keep():
    async def scenario(member):
        with pytest.raises(ApiError):
            member.metadata.set_configs("groups", "g", {})

    run(scenario)


def test_a_change_while_zookeeper_is_away_is_told_as_such():
    async def scenario(member):
        member.tree.cut()
        member.metadata.set_configs("brokers", "", {"log.retention.ms": "7"})
        with pytest.raises(ApiError) as refused:
            await member.metadata.published()
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT

    run(scenario)


def test_what_changed_while_zookeeper_was_away_is_known_after_it():
    async def scenario(member, other):
        other.tree.cut()
        member.metadata.set_configs("brokers", "", {"log.retention.ms": "7"})
        await member.metadata.published()
        other.tree.heal()
        await until(lambda: other.metadata.state.broker_configs == {"": {"log.retention.ms": "7"}})

    run(scenario, 2)


def test_news_are_whole_once_every_topic_was_told_with_all_its_partitions():
    async def scenario(member):
        member.metadata.expect({"t": 2})
        news = asyncio.ensure_future(member.metadata.news(PATIENCE_S * 1000))
        for count in (1, 2):
            assert not news.done()
            states = [partition(index) for index in range(count)]
            await member.tell(UpdateMetadataTopicState(topic_name="t", topic_id=bytes(16), partition_states=states))
        assert await news
        assert member.metadata.news(0) is None

    run(scenario)


def test_news_that_do_not_come_are_waited_for_once():
    async def scenario(member):
        member.metadata.expect({"deleted meanwhile": 1})
        assert not await member.metadata.news(1)
        assert member.metadata.news(0) is None

    run(scenario)


def test_a_topic_that_was_not_told_yet_is_not_taken_for_deleted():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await written(member, znodes.topic_path("t"))
        member.metadata.expect({"t": 1, "deleted": 1})
        assert not await member.metadata.news(1), "nobody waits for ever"
        assert member.metadata.may_be_told("t")
        assert not member.metadata.may_be_told("never there")
        await until(lambda: not member.metadata.may_be_told("deleted"))
        assert member.metadata.may_be_told("t"), "ZooKeeper has it"
        assert not member.metadata.is_whole("t")
        await member.obey("t")
        await asked
        assert not member.metadata.may_be_told("t")
        assert member.metadata.is_whole("t")

    run(scenario)


def test_what_an_older_controller_told_does_not_count_once_a_newer_one_was_heard():
    async def scenario(member):
        request = UpdateMetadataRequest(controller_id=9, controller_epoch=1, topic_states=[], live_brokers=[])
        assert not await in_slices(await member.metadata.learn(request, lambda: False))
        assert member.metadata.state.controller_id == 1
        assert await in_slices(await member.metadata.learn(request, lambda: True))
        assert member.metadata.state.controller_id == 9

    run(scenario)

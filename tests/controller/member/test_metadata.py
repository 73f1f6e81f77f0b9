"""What a member requests of other nodes, and when it reports success."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kbroker.controller import znodes
from kbroker.controller.features import TRANSACTION_VERSION, FeatureUpdate
from kbroker.controller.member.followed_nodes import TRIES
from kbroker.controller.member.metadata_cache import LEADER_DURING_DELETE
from kbroker.controller.tree.znode import SetData
from kbroker.long_work import in_slices
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import UpdateMetadataRequest, UpdateMetadataTopicState
from tests.controller.member.test_metadata_cache import partition
from tests.controller.member.world import PATIENCE_S, gone, members, until, written


def run(scenario, count=1):
    async def inside():
        async with asyncio.timeout(PATIENCE_S), members(count) as found:
            await scenario(*found)

    asyncio.run(inside())


async def created(member, *plans, timeout_ms=PATIENCE_S * 1000):
    return await member.metadata.put_in_pieces(plans, timeout_ms)


async def set_configs(member, kind, name, configs):
    await member.metadata.change_configs(kind, name, lambda _old: dict(configs))


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


def test_what_zookeeper_takes_counts_against_a_requests_time(monkeypatch):
    async def scenario(member):
        loop, commit = asyncio.get_running_loop(), member.tree.commit
        now, late = loop.time, [0]
        monkeypatch.setattr(loop, "time", lambda: now() + late[0])

        async def slowly(changes):
            late[0] += 3
            return await commit(changes)

        member.tree.commit = slowly
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1), timeout_ms=5_000))
        await written(member, znodes.topic_path("t"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked.done(), "configs and replicas took six seconds"
        assert asked.result()["t"].code == ErrorCode.REQUEST_TIMED_OUT

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
        waiting = asyncio.ensure_future(member.metadata.grow_in_pieces([member.metadata.plan_growth("t", 4, None)]))
        await written(member, znodes.topic_path("t"), 1)
        assert not waiting.done()
        after = await member.obey("t")
        assert await waiting == {}
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
        refused = await member.metadata.grow_in_pieces([member.metadata.plan_growth("t", 2, None)])
        assert refused["t"].code == ErrorCode.REASSIGNMENT_IN_PROGRESS

    run(scenario)


def test_a_topic_is_deleted_once_this_broker_has_heard_of_it():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t.a", 1, 1)))
        await written(member, znodes.topic_path("t.a"))
        known = await member.obey("t.a")
        await asked
        with pytest.raises(ApiError, match="collides"):
            member.metadata.check_new_name("t_a")
        waiting = asyncio.ensure_future(member.metadata.delete_in_pieces([known.topic_id]))
        await written(member, f"{znodes.DELETE_TOPICS}/t.a")
        assert not waiting.done()
        again = replace(member.metadata.plan_topic("other", 1, 1), name="t.a")  # as if this broker knew of it
        for refused in (member.metadata.validate_in_pieces([again]), member.metadata.put_in_pieces([again], 1)):
            assert {name: error.code for name, error in (await refused).items()} == {
                "t.a": ErrorCode.TOPIC_ALREADY_EXISTS
            }
        await gone(member.tree, "t.a")
        doomed = [partition(0, leader=LEADER_DURING_DELETE)]
        await member.tell(UpdateMetadataTopicState(topic_name="t.a", topic_id=known.topic_id, partition_states=doomed))
        assert await waiting == {}
        member.metadata.check_new_name("t_a")

    run(scenario)


def test_a_request_waits_for_its_own_changes_and_hears_of_their_errors_alone():
    async def scenario(member):
        known = {}
        for name in ("a", "b"):
            asked = asyncio.create_task(created(member, member.metadata.plan_topic(name, 1, 1)))
            await written(member, znodes.topic_path(name))
            known[name] = await member.obey(name)
            await asked
        slow = asyncio.ensure_future(member.metadata.delete_in_pieces([known["a"].topic_id]))
        moving = znodes.Assignment(known["b"].replicas, known["b"].topic_id, adding={0: (3,)})
        await member.tree.commit([SetData(znodes.topic_path("b"), moving.encode())])
        refused = asyncio.ensure_future(member.metadata.grow_in_pieces([member.metadata.plan_growth("b", 2, None)]))
        await set_configs(member, "topics", "b", {"retention.ms": "9"})
        assert not slow.done()
        assert (await refused)["b"].code == ErrorCode.REASSIGNMENT_IN_PROGRESS
        assert member.metadata.published() is None
        assert not slow.done()
        slow.cancel()

    run(scenario)


def test_deletion_and_growth_wait_as_long_as_their_request_says():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await written(member, znodes.topic_path("t"))
        known = await member.obey("t")
        await asked
        late = await member.metadata.grow_in_pieces([member.metadata.plan_growth("t", 2, None)], 1)
        assert late["t"].code == ErrorCode.REQUEST_TIMED_OUT
        node = await member.tree.get(znodes.topic_path("t"))
        assert len(znodes.read("t", node.data, znodes.Assignment.decode).replicas) == 2, "it is asked for all the same"
        for timeout_ms in (1, 0, -1):
            late = await member.metadata.delete_in_pieces([known.topic_id, bytes(15) + b"x"], timeout_ms)
            assert {each: error.code for each, error in late.items()} == {known.topic_id: ErrorCode.REQUEST_TIMED_OUT}
        assert await member.tree.get(f"{znodes.DELETE_TOPICS}/t") is not None

    run(scenario)


def test_a_request_that_nobody_waits_for_any_more_is_done_all_the_same():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await asyncio.sleep(0)
        asked.cancel()
        await written(member, znodes.topic_path("t"))

    run(scenario)


def test_a_coordinators_topic_is_created_once():
    async def scenario(member):
        member.metadata.auto_create("__consumer_offsets")
        member.metadata.auto_create("__consumer_offsets")
        assert member.metadata.auto_created("__transaction_state") is None
        waiting = asyncio.ensure_future(member.metadata.auto_created("__consumer_offsets"))
        await written(member, znodes.topic_path("__consumer_offsets"))
        known = await member.obey("__consumer_offsets")
        await waiting
        assert len(known.replicas) == 2
        assert member.metadata.auto_created("__consumer_offsets") is None

    run(scenario)


def test_a_coordinators_topic_waits_for_enough_brokers():
    async def scenario(member):
        await member.tell(brokers=(1,))
        member.metadata.auto_create("__consumer_offsets")
        assert member.metadata.auto_created("__consumer_offsets") is None

    run(scenario)


def test_configs_reach_all_members():
    async def scenario(member, other):
        for name, configs in (("", {"log.retention.ms": "7"}), ("2", {"log.cleaner.threads": "2"}), ("", {})):
            heard = []
            other.metadata.subscribe(lambda _old, new, heard=heard: heard.append(new))
            await set_configs(member, "brokers", name, configs)
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
        await set_configs(other, "topics", "t", {"retention.ms": "9"})
        await until(lambda: member.metadata.state.topics["t"].configs == {"retention.ms": "9"})

    run(scenario, 2)


def test_changes_by_two_members_at_a_time_both_hold():
    async def scenario(*both):
        def add(key):
            return lambda old: {**old, key: "1"}

        changes = [
            member.metadata.change_configs("brokers", "", add(f"{number}-{turn}"))
            for turn in range(10)
            for number, member in enumerate(both)
        ]
        await asyncio.gather(*changes)
        keys = {f"{number}-{turn}" for turn in range(10) for number in range(2)}
        for member in both:
            await until(lambda member=member: member.metadata.state.broker_configs.get("", {}).keys() == keys)

    run(scenario, 2)


def test_a_change_is_made_of_what_stands_and_not_of_what_this_member_has_heard():
    async def scenario(member, other):
        member.configs.close()  # it receives nothing
        await set_configs(other, "brokers", "", {"a": "1"})
        await member.metadata.change_configs("brokers", "", lambda old: {**old, "b": "2"})
        assert member.metadata.state.broker_configs[""] == {"a": "1", "b": "2"}
        # A change without effect is not written, but is sent to all brokers that did not know the state.
        path, known = "/config/brokers/<default>", {"a": "3"}
        await member.tree.commit([SetData(path, znodes.encode_configs(known))])
        for count in (3, 3):
            await member.metadata.change_configs("brokers", "", dict)
            assert member.metadata.state.broker_configs[""] == known
            assert (await member.tree.get(path)).stat.version == 2
            assert len(await member.tree.children(znodes.CONFIG_CHANGES)) == count
        await until(lambda: other.metadata.state.broker_configs[""] == known)

    run(scenario, 2)


def test_a_change_that_is_refused_changes_nothing_and_one_that_never_comes_through_ends():
    async def scenario(member):
        def refuse(_old):
            raise ApiError(ErrorCode.INVALID_CONFIG, "no")

        with pytest.raises(ApiError, match="no"):
            await member.metadata.change_configs("brokers", "", refuse)
        assert await member.tree.get("/config/brokers/<default>") is None
        await set_configs(member, "brokers", "", {"a": "0"})
        commit, asked = member.tree.commit, []

        async def others_first(changes):
            if any(isinstance(each, SetData) for each in changes):
                asked.append(changes)
                await commit([SetData("/config/brokers/<default>", znodes.encode_configs({"a": str(len(asked))}))])
            return await commit(changes)

        member.tree.commit = others_first
        with pytest.raises(ApiError, match="all the time"):
            await member.metadata.change_configs("brokers", "", lambda old: {**old, "b": "2"})
        assert len(asked) == TRIES

    run(scenario)


def test_configs_of_what_a_cluster_does_not_keep():
    async def scenario(member):
        with pytest.raises(ApiError):
            await set_configs(member, "client-metrics", "g", {})

    run(scenario)


def test_a_change_while_zookeeper_is_away_is_told_as_such():
    async def scenario(member):
        member.tree.cut()
        with pytest.raises(ApiError) as refused:
            await set_configs(member, "brokers", "", {"log.retention.ms": "7"})
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT

    run(scenario)


def test_what_changed_while_zookeeper_was_away_is_known_after_it():
    async def scenario(member, other):
        other.tree.cut()
        await set_configs(member, "brokers", "", {"log.retention.ms": "7"})
        other.tree.heal()
        await until(lambda: other.metadata.state.broker_configs == {"": {"log.retention.ms": "7"}})

    run(scenario, 2)


def test_news_are_whole_once_every_topic_was_told_with_all_its_partitions():
    async def scenario(member):
        member.metadata.expect({"t": 2})
        first_update = asyncio.ensure_future(member.metadata.first_update(PATIENCE_S * 1000))
        for count in (1, 2):
            assert not first_update.done()
            states = [partition(index) for index in range(count)]
            await member.tell(UpdateMetadataTopicState(topic_name="t", topic_id=bytes(16), partition_states=states))
        assert await first_update
        assert member.metadata.first_update(0) is None

    run(scenario)


def test_news_that_do_not_come_are_waited_for_once():
    async def scenario(member):
        member.metadata.expect({"deleted meanwhile": 1})
        assert not await member.metadata.first_update(1)
        assert member.metadata.first_update(0) is None

    run(scenario)


def test_a_topic_that_was_not_told_yet_is_not_taken_for_deleted():
    async def scenario(member):
        asked = asyncio.create_task(created(member, member.metadata.plan_topic("t", 1, 1)))
        await written(member, znodes.topic_path("t"))
        member.metadata.expect({"t": 1, "deleted": 1})
        assert not await member.metadata.first_update(1), "nobody waits for ever"
        assert member.metadata.may_be_unsent("t")
        assert not member.metadata.may_be_unsent("never there")
        await until(lambda: not member.metadata.may_be_unsent("deleted"))
        assert member.metadata.may_be_unsent("t"), "ZooKeeper has it"
        assert not member.metadata.is_whole("t")
        await member.obey("t")
        await asked
        assert not member.metadata.may_be_unsent("t")
        assert member.metadata.is_whole("t")

    run(scenario)


def test_what_an_older_controller_told_does_not_count_once_a_newer_one_was_heard():
    async def scenario(member):
        request = UpdateMetadataRequest(controller_id=9, controller_epoch=1, topic_states=[], live_brokers=[])
        assert not await in_slices(member.metadata.learn(request, lambda: False))
        assert member.metadata.state.controller_id == 1
        assert await in_slices(member.metadata.learn(request, lambda: True))
        assert member.metadata.state.controller_id == 9

    run(scenario)


def test_a_change_of_features_behind_a_busy_controller_is_answered_when_the_time_is_over():
    async def scenario(member):
        metadata, free, changes = member.metadata, asyncio.Event(), []

        async def busy(updates, *, validate_only):
            changes.append(updates)
            await free.wait()
            return 7

        member.controller.update_features = busy

        async def changed(level, timeout_ms):
            updates = [FeatureUpdate(TRANSACTION_VERSION, level, 1)]
            await metadata.update_features(updates, validate_only=False, timeout_ms=timeout_ms)

        for level in (1, 2, 1):
            with pytest.raises(ApiError) as caught:
                await asyncio.wait_for(changed(level, 1), PATIENCE_S / 4)
            assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert len(changes) == 1, "those nobody waits for any more wait at the controller"
        last = asyncio.create_task(changed(2, PATIENCE_S * 1000))
        free.set()
        await until(lambda: len(changes) == 2)
        metadata.features_changed({TRANSACTION_VERSION: 2}, 7)
        await last

    run(scenario)

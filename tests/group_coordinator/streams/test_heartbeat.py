"""StreamsGroupHeartbeat on a shard: joining, tasks, topics, leaving; the same responses as Apache Kafka's."""

from __future__ import annotations

import pytest

from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.groups import streams_group
from kbroker.group_coordinator.groups.streams_group import StreamsGroupState
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import CopartitionGroup, Endpoint, Subtopology, TaskOffset, TopicInfo
from tests.group_coordinator.streams_context import (
    AT_ONCE,
    StreamsContext,
    StreamsThread,
    converge,
    reading,
    topology,
)

E, S = ErrorCode, StreamsGroupState


@pytest.fixture
def context():
    found = StreamsContext(AT_ONCE)
    found.create("t", 4)
    return found


def thread(context, name="m", asked=None, **fields):
    return StreamsThread(context, name, asked or topology(reading("t")), **fields)


def deleted(context):
    (result,) = context.ask(lambda shard, _now: shard.delete_groups(["g"]))
    return result.error_code


def test_the_first_member_gets_all_tasks_at_once(context):
    one = thread(context)
    response = one.beat()
    assert (response.error_code, response.member_epoch, one.status) == (E.NONE, 2, [])
    assert one.told["active"] == {("0", index) for index in range(4)}
    assert context.streams_group().state is S.STABLE
    one.settle()
    assert one.beat().active_tasks is None


def test_a_second_member_gets_what_the_first_gives_up(context):
    one, two = thread(context, "a"), thread(context, "b")
    converge([one])
    two.beat()
    assert two.told["active"] == set()
    assert context.streams_group().state is S.RECONCILING
    one.beat()
    assert len(one.told["active"]) == 2
    two.beat()
    assert two.told["active"] == set(), "the first has not given them up yet"
    one.settle()
    converge([one, two])
    assert len(two.held["active"]) == 2
    assert one.held["active"] | two.held["active"] == {("0", index) for index in range(4)}
    assert context.streams_group().state is S.STABLE


def test_missing_source_topics_are_told_and_wait(context):
    one = thread(context, asked=topology(reading("t", "u")))
    response = one.beat()
    assert one.status == [(1, "Source topics u are missing.")]
    assert (response.error_code, one.told["active"]) == (E.NONE, set())
    assert context.streams_group().state is S.NOT_READY
    context.create("u", 2)
    converge([one])
    assert len(one.held["active"]) == 4
    assert context.streams_group().state is S.STABLE


def test_internal_topics_are_asked_for_until_they_exist(context):
    asked = topology(reading("t", store="app-store-changelog"))
    one = thread(context, asked=asked)
    one.beat()
    assert one.missing == ["app-store-changelog"]
    assert one.status == [(3, "Internal topics are missing: app-store-changelog")]
    context.create("app-store-changelog", 4)
    converge([one])
    assert (one.missing, one.status) == ([], [])
    assert len(one.held["active"]) == 4


def test_an_internal_topic_with_another_number_of_partitions(context):
    context.create("c", 3)
    one = thread(context, asked=topology(reading("t", store="c")))
    one.beat()
    assert one.status == [(2, "Existing topic c has different number of partitions: expected 4, found 3")]


def test_topics_that_are_not_copartitioned(context):
    context.create("u", 3)
    asked = reading("t", "u")
    asked.copartition_groups = [CopartitionGroup([0, 1], [], [])]
    one = thread(context, asked=topology(asked))
    one.beat()
    text = "Following topics do not have the same number of partitions: [{t=4, u=3}]"
    assert one.status == [(2, text)]


def test_repartition_topics_take_their_number_from_upstream(context):
    first = Subtopology("0", ["t"], [], [], ["r"], [], [])
    second = Subtopology("1", [], [], [TopicInfo("c", 0, 0, [])], [], [TopicInfo("r", 0, 0, [])], [])
    one = thread(context, asked=topology(second, first))
    response, missing = context.streams(
        "m", 0, topology=one.topology, rebalance_timeout_ms=1, active_tasks=[], standby_tasks=[], warmup_tasks=[]
    )
    assert response.error_code == E.NONE
    assert {(topic.name, topic.partitions) for topic in missing} == {("r", 4), ("c", 4)}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            topology(Subtopology("0", [], [], [], [], [TopicInfo("r", 0, 0, [])], [])),
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic.",
        ),
        (
            topology(Subtopology("0", [], [], [], ["r"], [TopicInfo("r", 0, 0, [])], [])),
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
            "that cannot be resolved.",
        ),
        (topology(Subtopology("0", [], [], [], [], [], [])), "No source topics found for subtopology 0"),
        (topology(reading("t"), reading("t")), "Subtopology 0 occurs more than once."),
        (topology(reading("t"), epoch=-1), "Topology epoch must be non-negative."),
        (topology(reading(*map(str, range(5_000)))), "The topology has more than 5000 "),
    ],
)
def test_topologies_that_cannot_be(context, asked, said):
    response = thread(context, asked=asked).beat()
    assert response.error_code == E.STREAMS_INVALID_TOPOLOGY
    if asked.subtopologies[0].source_topics[:1] != ["0"]:
        assert response.error_message == said
    assert response.error_message.startswith(said)


def test_another_topology_of_the_same_epoch_is_refused_and_an_older_one_is_stale(context):
    thread(context, "a", topology(reading("t"), epoch=2)).beat()
    other = thread(context, "b", topology(reading("t", name="1"), epoch=2)).beat()
    assert (other.error_code, other.error_message) == (E.INVALID_REQUEST, "Topology updates are not supported yet.")
    old = thread(context, "c", topology(reading("t"), epoch=1))
    assert old.beat().error_code == E.NONE
    assert old.status == [(0, "The member's topology epoch 1 is behind the group's topology epoch 2.")]


def test_a_group_waits_for_more_members_before_its_first_target():
    context = StreamsContext(GroupConfig())
    context.create("t", 4)
    one, two = thread(context, "a"), thread(context, "b")
    one.beat()
    assert one.status == [(5, "Assignment delayed due to the configured initial rebalance delay.")]
    context.advance(1_000)
    two.beat()
    assert one.told["active"] == two.told["active"] == set()
    context.advance(2_100)
    converge([one, two], rounds=3)
    assert len(one.held["active"]) == len(two.held["active"]) == 2
    assert context.streams_group().assignment_epoch == context.streams_group().epoch


def test_a_member_that_leaves_or_is_silent_loses_its_tasks(context):
    one, two = thread(context, "a"), thread(context, "b")
    converge([one, two])
    assert two.leave().member_epoch == -1
    converge([one])
    assert len(one.held["active"]) == 4
    context.advance(45_100)
    assert context.streams_group().state is S.EMPTY


def test_a_member_that_gives_up_nothing_in_time_is_removed(context):
    one, two = thread(context, "a"), thread(context, "b")
    converge([one])
    two.beat()
    one.beat()
    for _ in range(4):
        context.advance(10_000)
        two.beat()
        two.settle()
    assert set(context.streams_group().members) == {"b"}
    converge([two], rounds=2)
    assert len(two.held["active"]) == 4
    assert one.beat().error_code == E.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_to_its_tasks(context):
    one, two = thread(context, "a", instance_id="i"), thread(context, "b")
    converge([one, two])
    held = one.held["active"]
    epoch = context.streams_group().epoch
    assert one.leave(-2).member_epoch == -2
    back = thread(context, "c", instance_id="i", process="a")
    assert back.beat().error_code == E.NONE
    assert (back.told["active"], context.streams_group().epoch) == (held, epoch)
    assert context.streams("a", 3, instance_id="i")[0].error_code == E.FENCED_INSTANCE_ID
    assert thread(context, "d", instance_id="i").beat().error_code == E.UNRELEASED_INSTANCE_ID


def test_epochs(context):
    one = thread(context)
    converge([one])
    assert context.streams("m", 9)[0].error_code == E.FENCED_MEMBER_EPOCH
    assert context.streams("m", 1)[0].error_code == E.FENCED_MEMBER_EPOCH
    assert context.streams("x", 1)[0].error_code == E.UNKNOWN_MEMBER_ID
    assert context.streams("x", 1, group="none")[0].error_code == E.GROUP_ID_NOT_FOUND


def test_standbys_go_to_other_processes(context):
    context.create("c", 4)
    context.configure("g", streams_num_standby_replicas="1")
    one, two = (thread(context, name, topology(reading("t", store="c"))) for name in "ab")
    converge([one, two])
    assert one.held["standby"] == two.held["active"]
    assert two.held["standby"] == one.held["active"]
    two.leave()
    converge([one])
    assert len(one.held["active"]) == 4
    assert one.held["standby"] == set()


def test_endpoints_tell_where_partitions_are(context):
    one, two = (thread(context, name, user_endpoint=Endpoint(name, 1)) for name in "ab")
    converge([one, two])
    response, _ = context.streams("a", one.epoch, endpoint_information_epoch=-1)
    found = {each.user_endpoint.host: each.active_partitions for each in response.partitions_by_user_endpoint}
    assert found.keys() == {"a", "b"}
    assert sorted(index for each in found.values() for index in each[0].partitions) == [0, 1, 2, 3]
    again, _ = context.streams("a", one.epoch, endpoint_information_epoch=response.endpoint_information_epoch)
    assert again.partitions_by_user_endpoint is None


def test_shutdown_is_told_to_all(context):
    one, two = thread(context, "a"), thread(context, "b")
    converge([one, two])
    context.streams("a", one.epoch, shutdown_application=True)
    two.beat()
    assert two.status[-1][0] == 4


def test_client_tags_that_are_missing(context):
    context.configure("g", streams_rack_aware_assignment_tags="zone,row")
    one = thread(context)
    one.beat()
    assert one.status[-1][0] == 6
    assert "[zone, row]" in one.status[-1][1]
    assert context.streams("m", one.epoch, version=0)[0].status == []


def test_a_loaded_group_goes_on_where_it_was(context):
    one, two = thread(context, "a"), thread(context, "b")
    converge([one, two])
    again = context.restarted()
    for each in (one, two):
        each.context = again
    before, after = context.streams_group(), again.streams_group()
    for name in ("epoch", "assignment_epoch", "metadata_hash", "members", "target", "topology", "state"):
        assert getattr(before, name) == getattr(after, name), name
    held = one.held["active"]
    converge([one, two], rounds=2)
    assert one.held["active"] == held


def test_an_empty_group_is_deleted_and_replaced(context):
    one = thread(context)
    converge([one])
    assert deleted(context) == E.NON_EMPTY_GROUP
    one.leave()
    assert deleted(context) == E.NONE
    assert context.shard.groups.get("g") is None
    assert context.restarted().shard.groups.get("g") is None


def reported(count, name="0"):
    return [TaskOffset(name, index, index) for index in range(count)]


def test_one_that_cannot_become_a_member_leaves_nothing_behind(context):
    thread(context, "a").beat()
    context.fail_with = E.MESSAGE_TOO_LARGE
    offsets = {"task_offsets": reported(4), "task_end_offsets": reported(4)}
    refused = thread(context, "b", user_endpoint=Endpoint("b", 1), endpoint_information_epoch=-1, **offsets)
    assert refused.beat().error_code != E.NONE
    context.fail_with = E.NONE
    group = context.streams_group()
    assert (group.restored, group.restored_ends, group.endpoints) == ({}, {}, {})


def test_offsets_are_kept_of_tasks_of_the_topology_up_to_a_number(context, monkeypatch):
    monkeypatch.setattr(streams_group, "MOST_OFFSETS", 10)
    one, two = thread(context, "a"), thread(context, "b")
    converge([one, two])
    group = context.streams_group()
    context.streams("a", one.epoch, task_offsets=reported(4) + reported(50, "of no subtopology"))
    assert group.restored == {"a": {"0": {0: 0, 1: 1, 2: 2, 3: 3}}}
    context.streams("b", two.epoch, task_offsets=reported(4), task_end_offsets=reported(4))
    assert (group.restored.keys(), group.restored_ends.keys()) == ({"a", "b"}, set())
    one.leave()
    context.streams("b", two.epoch, task_end_offsets=reported(6))
    assert group.restored_ends.keys() == {"b"}

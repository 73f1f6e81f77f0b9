"""Share groups on a node: from the first heartbeat to the deletion of the group, with the share coordinator."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kbroker.controller.features import SHARE_VERSION
from kbroker.handlers import groups
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import share_groups as messages
from kbroker.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from tests.security.authorizer.served import ADMIN, asynchronous, codes, serving

from .test_on_a_node import SETTINGS, enabled, loaded, read, summary

E = ErrorCode
EAGER = {**SETTINGS, "group_share_assignment_interval_ms": "0"}


async def beat(served, member_id, epoch, *topics, principal=ADMIN):
    request = messages.ShareGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, subscribed_topic_names=list(topics) or None
    )
    return await served.ask(request, 1, principal)


async def settled(served):
    """Wait until the background tasks of the share groups have ended."""
    tasks = served.node.groups.share_groups._tasks
    while tasks:
        await asyncio.wait(list(tasks), timeout=10)


async def joined(served, member_id="m"):
    answer = await beat(served, member_id, 0, "t")
    await settled(served)
    return await beat(served, member_id, answer.member_epoch)


async def describe_offsets(served, topics, version=1):
    asked = messages.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=topics)
    request = messages.DescribeShareGroupOffsetsRequest(groups=[asked])
    return (await served.ask(request, version, ADMIN)).groups[0]


async def alter(served, offset, *partitions, topic="t"):
    asked = [messages.AlterShareGroupOffsetsRequestPartition(each, offset) for each in partitions]
    request = messages.AlterShareGroupOffsetsRequest(
        group_id="g", topics=[messages.AlterShareGroupOffsetsRequestTopic(topic, asked)]
    )
    return await served.ask(request, 0, ADMIN)


async def opened(served):
    """Create the topics of the coordinators and topic `t`; return the id of `t`."""
    topic_id = await enabled(served)
    served.node.controller.auto_create("__consumer_offsets")
    await served.settled()
    await served.node.replicas.hosted_of("__consumer_offsets")
    return topic_id


@asynchronous
async def test_a_group_from_its_first_member_to_its_deletion(tmp_path):
    forgotten = []
    async with serving(tmp_path, **EAGER) as served:
        topic_id = await opened(served)
        share_groups = served.node.groups.share_groups
        share_groups._sharing = replace(share_groups._sharing, forget=lambda *place: forgotten.append(place))
        answer = await joined(served)
        (assigned,) = answer.assignment.topic_partitions
        assert (assigned.topic_id, assigned.partitions) == (topic_id, [0])
        (topic,) = (await served.ask(read(topic_id), 0, ADMIN)).results
        assert (topic.partitions[0].state_epoch, topic.partitions[0].start_offset) == (2, -1)
        (group,) = (await served.ask(messages.ShareGroupDescribeRequest(group_ids=["g"]), 1, ADMIN)).groups
        assert (group.group_state, group.assignor_name, group.group_epoch) == ("Stable", "simple", 3)
        assert group.members[0].assignment.topic_partitions[0].topic_name == "t"
        (listed,) = (await served.ask(ListGroupsRequest(types_filter=["share"]), 5, ADMIN)).groups
        assert (listed.group_id, listed.group_type) == ("g", "share")
        refused = await served.ask(DeleteGroupsRequest(groups_names=["g"]), 2, ADMIN)
        assert refused.results[0].error_code == E.NON_EMPTY_GROUP
        await beat(served, "m", -1)
        deleted = await served.ask(DeleteGroupsRequest(groups_names=["g", "x"]), 2, ADMIN)
        assert {each.group_id: each.error_code for each in deleted.results} == {"g": 0, "x": E.GROUP_ID_NOT_FOUND}
        assert forgotten == [("g", topic_id, 0)], "the leader is told"
        assert codes(await served.ask(read(topic_id), 0, ADMIN)) == {E.INVALID_REQUEST}
        assert not [each for shard in served.node.shares.loaded() for each in shard.states()]
        gone = (await served.ask(messages.ShareGroupDescribeRequest(group_ids=["g"]), 1, ADMIN)).groups[0]
        assert (gone.error_code, gone.error_message) == (E.GROUP_ID_NOT_FOUND, "Group g not found.")


@asynchronous
async def test_offsets_are_altered_described_and_deleted(tmp_path):
    async with serving(tmp_path, **EAGER) as served:
        topic_id = await opened(served)
        await joined(served)
        assert (await alter(served, 5, 0)).error_code == E.NON_EMPTY_GROUP
        await beat(served, "m", -1)
        refused = await alter(served, 9, 0, -1)
        assert (refused.error_code, refused.responses) == (E.UNKNOWN_SERVER_ERROR, [])
        altered = await alter(served, 5, 0, 7)
        (topic,) = altered.responses
        assert topic.topic_id == topic_id
        assert [each.error_code for each in topic.partitions] == [0, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert codes(await alter(served, 5, 0, topic="unknown")) == {0, E.UNKNOWN_TOPIC_OR_PARTITION}
        found = await describe_offsets(served, None)
        (partition,) = found.topics[0].partitions
        assert (partition.start_offset, partition.lag, partition.error_code) == (5, -5, 0)
        assert codes(await alter(served, -(2**63), 0)) == {0}
        (partition,) = (await describe_offsets(served, None)).topics[0].partitions
        assert (partition.start_offset, partition.lag) == (-(2**63), -(2**63)), "as in Java, it overflows"
        await alter(served, 5, 0)
        named = [messages.DescribeShareGroupOffsetsRequestTopic(each, [0, 9]) for each in ("t", "unknown")]
        found = await describe_offsets(served, named, version=0)
        offsets = {each.topic_name: [one.start_offset for one in each.partitions] for each in found.topics}
        assert offsets == {"t": [5, -1], "unknown": [-1, -1]}
        request = messages.DeleteShareGroupOffsetsRequest(
            group_id="g", topics=[messages.DeleteShareGroupOffsetsRequestTopic(each) for each in ("t", "unknown")]
        )
        deleted = await served.ask(request, 0, ADMIN)
        assert {each.topic_name: each.error_code for each in deleted.responses} == {
            "t": 0, "unknown": E.UNKNOWN_TOPIC_OR_PARTITION,
        }  # fmt: skip
        (topic,) = (await served.ask(summary(topic_id), 1, ADMIN)).results
        assert topic.partitions[0].start_offset == -1
        assert (await describe_offsets(served, None)).topics == []


@asynchronous
async def test_a_group_that_a_request_repeats_is_described_within_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(groups, "MAX_REPEATED_BYTES", 300)
    async with serving(tmp_path, **EAGER) as served:
        await opened(served)
        await joined(served)
        whole = messages.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
        one = messages.DescribeShareGroupOffsetsRequestGroup(
            group_id="g", topics=[messages.DescribeShareGroupOffsetsRequestTopic("t", [0])]
        )
        request = messages.DescribeShareGroupOffsetsRequest(groups=[whole, one, *[whole] * 20, one])
        found = (await served.ask(request, 1, ADMIN)).groups
        assert [each.group_id for each in found] == ["g"] * 23
        assert [each.topics[0].topic_name for each in (*found[:3], found[-1])] == ["t"] * 4
        assert (found[-2].error_code, found[-2].topics) == (E.INVALID_REQUEST, [])


@asynchronous
async def test_ids_that_no_member_can_have(tmp_path):
    async with serving(tmp_path, **EAGER) as served:
        await opened(served)
        for member_id in ("", "m" * 37):
            answer = await beat(served, member_id, 0, "t")
            assert (answer.error_code, answer.error_message) == (E.INVALID_REQUEST, None)


@asynchronous
async def test_an_alteration_ends_even_if_its_client_is_gone(tmp_path):
    async with serving(tmp_path, **EAGER) as served:
        topic_id = await opened(served)
        asked = messages.AlterShareGroupOffsetsRequestTopic(
            "t", [messages.AlterShareGroupOffsetsRequestPartition(0, 3)]
        )
        work = served.node.groups.share_groups.alter_offsets(
            messages.AlterShareGroupOffsetsRequest(group_id="g", topics=[asked])
        )
        work.send(None)
        work.close()
        await settled(served)
        (topic,) = (await served.ask(summary(topic_id), 1, ADMIN)).results
        assert topic.partitions[0].start_offset == 3
        found = await describe_offsets(served, None)
        assert found.topics[0].partitions[0].start_offset == 3


@asynchronous
async def test_a_group_survives_a_restart(tmp_path):
    async with serving(tmp_path, **EAGER) as served:
        await opened(served)
        await joined(served)
    async with serving(tmp_path, **EAGER) as served:
        await loaded(served)
        (group,) = (await served.ask(messages.ShareGroupDescribeRequest(group_ids=["g"]), 1, ADMIN)).groups
        assert [each.member_id for each in group.members] == ["m"]
        assert (await beat(served, "m", group.members[0].member_epoch)).error_code == E.NONE


@asynchronous
async def test_a_deleted_topic_leaves_nothing_behind(tmp_path):
    async with serving(tmp_path, **EAGER) as served:
        await opened(served)
        await joined(served)
        served.node.controller.delete_topics(["t"])
        await served.settled()
        assert not [each for shard in served.node.shares.loaded() for each in shard.states()]
        (group,) = [group for shard in served.node.groups.loaded() for group in shard.groups.shares()]
        assert group.state_partitions.topic_ids() == set()


@asynchronous
async def test_without_the_feature_there_are_no_share_groups(tmp_path):
    async with serving(tmp_path) as served:
        controller = served.node.controller
        controller.replace_features({**controller.state.features, SHARE_VERSION: 0})
        await served.settled()
        for request, version in (
            (messages.ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["t"]), 1),
            (messages.ShareGroupDescribeRequest(group_ids=["g"]), 1),
            (messages.AlterShareGroupOffsetsRequest(group_id="g"), 0),
            (messages.DeleteShareGroupOffsetsRequest(group_id="g"), 0),
        ):
            assert codes(await served.ask(request, version, ADMIN)) == {E.UNSUPPORTED_VERSION}

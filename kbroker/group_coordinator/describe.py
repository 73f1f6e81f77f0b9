"""The descriptions of groups for administrators: ListGroups, DescribeGroups, and the APIs of other protocols.

Owns the form of the answers. Deleted topics are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from kbroker.group_coordinator.assignment import Partitions
from kbroker.group_coordinator.groups.classic_group import DEAD, STABLE, ClassicGroup, Member
from kbroker.group_coordinator.groups.consumer_group import NOTHING
from kbroker.group_coordinator.groups.consumer_member import CLASSIC_MEMBER, CONSUMER_MEMBER, ConsumerMember
from kbroker.group_coordinator.groups.share_group import ShareMember
from kbroker.group_coordinator.groups.store import Group, Groups
from kbroker.group_coordinator.groups.streams_group import StreamsGroup, StreamsGroupState
from kbroker.group_coordinator.groups.streams_member import StreamsMember
from kbroker.group_coordinator.records.streams_group import task_ids
from kbroker.group_coordinator.stuck_offsets import Stuck
from kbroker.group_coordinator.topics import Topics
from kbroker.group_coordinator.topologies.tasks import NO_TASKS
from kbroker.long_work import each, turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import consumer_groups, share_groups, streams_groups
from kbroker.protocol.messages.consumer_groups import DescribedAssignment, DescribedPartitions
from kbroker.protocol.messages.groups import DescribedGroup, DescribedGroupMember, ListedGroup, StuckPartition

ERROR_MESSAGE_SINCE = 6

_NO_MEMBERS: Final[list[DescribedGroupMember]] = []
"""The empty member list that all missing groups share.

It is never modified: 500,000 separate lists would take 36 MB.
"""


async def describe_group(groups: Groups, group_id: str, version: int) -> DescribedGroup:
    """Answer DescribeGroups. A missing group is Dead; from version 6 on, its answer also has an error (KIP-1043)."""
    group = groups.get(group_id)
    if not isinstance(group, ClassicGroup):
        if version >= ERROR_MESSAGE_SINCE:
            reason = "not found" if group is None else "is not a classic group"
            return DescribedGroup(
                group_id=group_id,
                group_state=DEAD.value,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {reason}.",
                members=_NO_MEMBERS,
            )
        return DescribedGroup(group_id=group_id, group_state=DEAD.value, members=_NO_MEMBERS)
    protocol = group.protocol_name if group.state is STABLE else None

    def described(member: Member) -> DescribedGroupMember:
        return DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if protocol is None else member.metadata(protocol),
            member_assignment=member.assignment,
        )

    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=await each(list(group.members.values()), described),
    )


async def describe_consumer_group(
    groups: Groups, group_id: str, default_assignor: str, topics: Topics
) -> consumer_groups.DescribedGroup:
    """Answer ConsumerGroupDescribe; raises GROUP_ID_NOT_FOUND.

    The answer has each member's target and current partitions, including those that the member must revoke.
    """
    group = groups.known_consumer(group_id)
    described = consumer_groups.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
    )
    described.members = await each(
        list(group.members.values()),
        lambda member: _member(member, group.target.get(member.member_id, NOTHING), topics),
    )
    return described


def _member(member: ConsumerMember, target: Partitions, topics: Topics) -> consumer_groups.Member:
    held: dict[bytes, list[int]] = {}
    for epochs in (member.assigned, member.pending_revocation):
        for topic_id, indexes in epochs.items():
            held.setdefault(topic_id, []).extend(indexes)
    return consumer_groups.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(held, topics),
        target_assignment=_assignment(target, topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Iterable[int]], topics: Topics) -> DescribedAssignment:
    return DescribedAssignment(
        topic_partitions=[
            DescribedPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )


async def describe_streams_group(groups: Groups, group_id: str, assignor: str) -> streams_groups.DescribedStreamsGroup:
    """Answer StreamsGroupDescribe; raises GROUP_ID_NOT_FOUND."""
    group = groups.known_streams(group_id)
    described = streams_groups.DescribedStreamsGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
    )
    if group.configured is not None and group.configured.is_ready:
        described.topology = group.configured.described()
    elif group.topology is not None:
        described.topology = group.topology.described()
    described.members = await each(list(group.members.values()), lambda member: _streams_member(group, member))
    return described


def _streams_member(group: StreamsGroup, member: StreamsMember) -> streams_groups.DescribedMember:
    target, held = group.target.get(member.member_id, NO_TASKS), member.assigned
    return streams_groups.DescribedMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else streams_groups.Endpoint(*member.endpoint),
        client_tags=[streams_groups.KeyValue(key, value) for key, value in member.client_tags.items()],
        task_offsets=_task_offsets(group.restored.get(member.member_id, {})),
        task_end_offsets=_task_offsets(group.restored_ends.get(member.member_id, {})),
        assignment=streams_groups.DescribedTasks(task_ids(held.active), task_ids(held.standby), task_ids(held.warmup)),
        target_assignment=streams_groups.DescribedTasks(
            task_ids(target.active), task_ids(target.standby), task_ids(target.warmup)
        ),
    )


def _task_offsets(offsets: Mapping[str, Mapping[int, int]]) -> list[streams_groups.TaskOffset]:
    return [
        streams_groups.TaskOffset(name, index, offset)
        for name, restored in sorted(offsets.items())
        for index, offset in sorted(restored.items())
    ]


def _is_in(state: str, states: Container[str]) -> bool:
    """Return whether a filter contains a state.

    In filters, Kafka's broker expects not_ready for the state NotReady, but Kafka's tools send NotReady.
    """
    return state.lower() in states or (state == StreamsGroupState.NOT_READY.value and "not_ready" in states)


async def describe_share_group(
    groups: Groups, group_id: str, assignor: str, topics: Topics
) -> share_groups.DescribedGroup:
    """Answer ShareGroupDescribe; raises GROUP_ID_NOT_FOUND."""
    group = groups.known_share(group_id)
    described = share_groups.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
    )
    described.members = await each(list(group.members.values()), lambda member: _share_member(member, topics))
    return described


def _share_member(member: ShareMember, topics: Topics) -> share_groups.Member:
    partitions = [
        share_groups.DescribedPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
        for topic_id, indexes in member.assigned.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    return share_groups.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=share_groups.DescribedAssignment(topic_partitions=partitions),
    )


async def list_groups(
    groups: Iterable[Group],
    states: Container[str],
    types: Container[str],
    stuck: Mapping[str, Sequence[Stuck]],
) -> list[ListedGroup]:
    """List the groups of these states and types, both given in lower case. An empty filter matches all."""
    listed = []
    for group in groups:
        if (not types or group.TYPE in types) and (not states or _is_in(group.state.value, states)):
            listed.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=group.TYPE,
                    stuck=[StuckPartition(*each) for each in stuck.get(group.group_id, ())],
                )
            )
        await turn
    return listed

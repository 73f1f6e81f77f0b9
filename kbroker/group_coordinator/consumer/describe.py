"""ConsumerGroupDescribe: a consumer group as administrators see it.

Owns the shape of the answer. Topics that are gone are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.group_coordinator.consumer.group import NOTHING, ConsumerGroup
from kbroker.group_coordinator.consumer.member import CLASSIC_MEMBER, CONSUMER_MEMBER, ConsumerMember, Partitions
from kbroker.group_coordinator.consumer.topics import Topics
from kbroker.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)


def describe(group: ConsumerGroup, default_assignor: str, topics: Topics) -> DescribedGroup:
    """Return a group with its members: what each has, which includes what it is to give up, and what it is to have."""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or default_assignor,
        members=[
            _member(member, group.target.get(member.member_id, NOTHING), topics) for member in group.members.values()
        ],
    )


def _member(member: ConsumerMember, target: Partitions, topics: Topics) -> Member:
    held: dict[bytes, list[int]] = {}
    for epochs in (member.assigned, member.pending_revocation):
        for topic_id, indexes in epochs.items():
            held.setdefault(topic_id, []).extend(indexes)
    return Member(
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


def _assignment(partitions: Mapping[bytes, Iterable[int]], topics: Topics) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )

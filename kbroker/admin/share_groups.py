"""Share groups (KIP-932) of any Kafka: their members, and reading and altering their start offsets.

Owns the requests for them that kafka-python lacks: ShareGroupDescribe, DescribeShareGroupOffsets and
AlterShareGroupOffsets. The deletion of share groups is a row of kbroker/changes.py. Never prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

from kbroker.admin.errors import Failures, check_code, code_error, error_text
from kbroker.admin.own_request import ask_patiently
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


class ShareOffset(NamedTuple):
    """A share group's start offset (None if not stored yet) and lag (None if unknown) in a partition."""

    start_offset: int | None
    lag: int | None


def describe_share_group(admin: Any, name: str) -> dict[str, Any] | None:
    """Return state, epochs, assignor and members; None if there is no share group of this name. Raises AdminError."""
    request = ShareGroupDescribeRequest(group_ids=[name])
    group = ask_patiently(
        admin, name, request, ShareGroupDescribeResponse, lambda answer: answer.groups[0].error_code
    ).groups[0]
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check_code(group.error_code, f"cannot describe group {name}", group.error_message)
    return {
        "group": name,
        "state": group.group_state,
        "type": "share",
        "protocol": "share",
        "assignor": group.assignor_name or None,
        "epoch": group.group_epoch,
        "target_epoch": group.assignment_epoch,
        "members": [_member(each) for each in group.members],
    }


def share_offsets(admin: Any, name: str) -> dict[TopicPartition, ShareOffset]:
    """Return the start offset and the lag of each partition that the group has used. Raises AdminError."""
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(name, topics=None)])
    answer = ask_patiently(
        admin, name, request, DescribeShareGroupOffsetsResponse, lambda answer: answer.groups[0].error_code
    )
    (group,) = answer.groups
    check_code(group.error_code, f"cannot read the offsets of group {name}", group.error_message)
    return {
        TopicPartition(topic.topic_name, each.partition_index): ShareOffset(
            each.start_offset if each.start_offset >= 0 and not each.error_code else None,
            each.lag if each.lag >= 0 and not each.error_code else None,
        )
        for topic in group.topics
        for each in topic.partitions
    }


def alter_share_offsets(admin: Any, name: str, new: Mapping[TopicPartition, int]) -> None:
    """Set the start offsets of a group without members. Raises Failures."""
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for each, offset in sorted(new.items()):
        wanted = AlterShareGroupOffsetsRequestPartition(each.partition, offset)
        topics.setdefault(each.topic, []).append(wanted)
    request = AlterShareGroupOffsetsRequest(
        name, [AlterShareGroupOffsetsRequestTopic(*each) for each in topics.items()]
    )
    answer = ask_patiently(admin, name, request, AlterShareGroupOffsetsResponse, lambda answer: answer.error_code)
    check_code(answer.error_code, f"cannot reset group {name}", answer.error_message)
    failures = [
        f"cannot reset {topic.topic_name} {each.partition_index}:"
        f" {error_text(code_error(each.error_code), each.error_message)}"
        for topic in answer.responses
        for each in topic.partitions
        if each.error_code
    ]
    if failures:
        raise Failures(failures)


def _member(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": None,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": [
            {"topic": each.topic_name, "partition": partition}
            for each in sorted(member.assignment.topic_partitions, key=lambda each: each.topic_name)
            for partition in sorted(each.partitions)
        ],
        "epoch": member.member_epoch,
        "target_partitions": None,
        "subscribed_topics": sorted(member.subscribed_topic_names),
    }

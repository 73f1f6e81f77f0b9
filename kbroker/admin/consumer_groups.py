"""The description of a consumer group of KIP-848's protocol by its coordinator.

Owns the request ConsumerGroupDescribe, which kafka-python does not have. Never prints.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.admin.connection import patiently
from kbroker.admin.error_codes import code_error, error_text
from kbroker.admin.errors import AdminError
from kbroker.admin.own_request import ask_coordinator
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedGroup,
    Member,
)

_NONE_SUCH: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def describe_consumer_group(admin: Any, name: str) -> dict[str, Any] | None:
    """Return state, assignor and members of a consumer group.

    None if the broker does not know the API (before Apache Kafka 3.7), has the protocol disabled, or has no consumer
    group of that name.
    """
    group = patiently(lambda: _answered(admin, name))
    if group is None or group.error_code in _NONE_SUCH:
        return None
    if group.error_code:
        raise AdminError(
            f"cannot describe group {name}: {error_text(code_error(group.error_code), group.error_message)}"
        )
    return {
        "group": name,
        "state": group.group_state,
        "type": "consumer",
        "protocol": "consumer",
        "assignor": group.assignor_name or None,
        "epoch": group.group_epoch,
        "target_epoch": group.assignment_epoch,
        "members": [_member(each) for each in group.members],
    }


def _answered(admin: Any, name: str) -> DescribedGroup | None:
    """Send one request; raises the client's error for a retriable code."""
    request = ConsumerGroupDescribeRequest(group_ids=[name])
    answer = ask_coordinator(admin, name, request, ConsumerGroupDescribeResponse)
    if answer is None or not answer.groups:
        return None
    group = answer.groups[0]
    error = code_error(group.error_code)
    if error is not None and error.retriable:
        raise error(group.error_message)
    return group


def _member(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": _partitions(member.assignment),
        "epoch": member.member_epoch,
        "target_partitions": _partitions(member.target_assignment),
    }


def _partitions(assignment: DescribedAssignment) -> list[dict[str, Any]]:
    return [
        {"topic": each.topic_name, "partition": partition}
        for each in sorted(assignment.topic_partitions, key=lambda each: each.topic_name)
        for partition in sorted(each.partitions)
    ]

"""Descriptions of groups of every type, as returned by their coordinators.

Owns one form of description for all group protocols, and the computation of the lag. Owns KIP-848's request
ConsumerGroupDescribe, which kafka-python lacks. Never prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import kafka.errors
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from kbroker.admin.connection import patiently
from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.group_offsets import PartitionOffsets, committed_offsets
from kbroker.admin.own_request import ask_coordinator, coordinator_of
from kbroker.admin.share_groups import describe_share_group, share_offsets
from kbroker.admin.streams_groups import describe_streams_group
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedAssignment,
    DescribedGroup,
    Member,
)

TYPES: Final = ("classic", "consumer", "share", "streams")
"""The group types of Apache Kafka 4.4."""
_OF_OTHER_APIS: Final = {"share": describe_share_group, "streams": describe_streams_group}
"""The types of groups that DescribeGroups reports as missing. Only the list of groups shows that such groups exist."""
STATES: Final = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "NotReady",
    "Dead",
)
_NO_GROUP: Final = "GroupIdNotFoundError"
"""kafka-python's name of the error for a missing group."""
_OF_OWNERS: Final = ("member_id", "instance_id", "client_id", "host")
"""The fields that describe the member that reads a partition."""
_COORDINATOR_MOVING: Final = (
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "NotCoordinatorError",
)


def listed_groups(admin: Any, states: Iterable[str] = (), types: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Return groups by name, with state, type and protocol; `states` and `types` are filters if not empty."""
    filters = {"states_filter": list(states) or None, "types_filter": list(types) or None}
    groups = patiently(lambda: admin.list_groups(**filters))
    return {
        group["group_id"]: {
            "group": group["group_id"],
            "state": group.get("group_state"),
            "type": group.get("group_type"),
            "protocol": group["protocol_type"],
        }
        for group in sorted(groups, key=lambda group: str(group["group_id"]))
    }


def _answered(admin: Any, name: str) -> Any:
    """Describe one group.

    While the group has no coordinator, this raises a retriable error; the client itself returns only a text.
    """
    group = admin.describe_groups([name])[name]
    if group["error"] is not None and any(each in group["error"] for each in _COORDINATOR_MOVING):
        raise kafka.errors.CoordinatorLoadInProgressError(group["error"])
    return group


def group_of(admin: Any, name: str, kind: str | None = None) -> dict[str, Any] | None:
    """Return state, type, protocol and members of a group; None if it does not exist.

    `kind` is the group's type, if the caller knows it from a list of groups. Otherwise this function requests that
    list, which may be long. The members are None if the broker lists a consumer group but does not serve its
    description.
    """
    if kind in _OF_OTHER_APIS:
        return _OF_OTHER_APIS[kind](admin, name)
    group = patiently(lambda: _answered(admin, name))
    if group["error"] is None and group["group_state"] != "Dead":
        return {
            "group": name,
            "state": group["group_state"],
            "type": "classic",
            "protocol": group["protocol_type"],
            "assignor": group["protocol_data"] or None,
            "epoch": None,
            "target_epoch": None,
            "members": [_member(each) for each in group["members"]],
        }
    if group["error"] is not None and _NO_GROUP not in group["error"]:
        raise AdminError(f"cannot describe group {name}: {group['error']}")
    found = describe_consumer_group(admin, name)
    if found is not None:
        return found
    listed = listed_groups(admin).get(name)
    if listed is None or listed["state"] == "Dead":
        return None
    if listed["type"] in _OF_OTHER_APIS:
        return _OF_OTHER_APIS[listed["type"]](admin, name)
    return {**listed, "assignor": None, "epoch": None, "target_epoch": None, "members": None}


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    assignment = member["member_assignment"]
    partitions = assignment.get("assigned_partitions", ()) if isinstance(assignment, dict) else ()
    return {
        "member_id": member["member_id"],
        "instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "host": member["client_host"],
        "partitions": [
            {"topic": each["topic"], "partition": partition}
            for each in sorted(partitions, key=lambda each: str(each["topic"]))
            for partition in sorted(each["partitions"])
        ],
        "epoch": None,
        "target_partitions": None,
    }


def described_group(admin: Any, name: str, kind: str | None = None) -> dict[str, Any] | None:
    """Return a group of `group_of` with its coordinator and its offset in each partition; None if it does not exist.

    A share group has a start offset in each partition, and no owner: several members may read the same partition.
    """
    group = group_of(admin, name, kind)
    if group is None:
        return None
    group["coordinator"] = patiently(lambda: coordinator_of(admin, name))
    if group["type"] == "share":
        return {**group, "partitions": _share_rows(admin, name)}
    owners = {
        TopicPartition(each["topic"], each["partition"]): member
        for member in group["members"] or ()
        for each in member["partitions"]
    }
    committed = committed_offsets(admin, name)
    wanted = sorted({*owners, *committed})
    ends = PartitionOffsets(admin, wanted).of(OffsetSpec.LATEST)
    rows = []
    for each in wanted:
        current, end = committed.get(each), ends.get(each)
        rows.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "current_offset": current,
                "log_end_offset": end,
                "lag": None if current is None or end is None else max(end - current, 0),
                **{key: owners[each][key] if each in owners else None for key in _OF_OWNERS},
            }
        )
    return {**group, "partitions": rows}


def _share_rows(admin: Any, name: str) -> list[dict[str, Any]]:
    return [
        {"topic": each.topic, "partition": each.partition, "start_offset": found.start_offset, "lag": found.lag}
        for each, found in sorted(share_offsets(admin, name).items())
    ]


def member_counts(admin: Any, kinds: Mapping[str, str | None]) -> dict[str, int]:
    """Return the number of members of each group, given the groups' types; leave out groups without an answer."""
    found: dict[str, int] = {}
    classic = [name for name, kind in kinds.items() if kind not in ("consumer", "share", "streams")]
    with contextlib.suppress(kafka.errors.KafkaError):
        described = admin.describe_groups(classic) if classic else {}
        found.update({name: len(each["members"]) for name, each in described.items() if each["error"] is None})
    by_kind = {"consumer": describe_consumer_group, **_OF_OTHER_APIS}
    for name, kind in kinds.items():
        if kind in by_kind:
            with contextlib.suppress(kafka.errors.KafkaError, AdminError):
                group = by_kind[kind](admin, name)
                if group is not None:
                    found[name] = len(group["members"])
    return found


_UNKNOWN: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)


def describe_consumer_group(admin: Any, name: str) -> dict[str, Any] | None:
    """Return state, assignor and members of a consumer group.

    Return None if the broker does not know the API (before Apache Kafka 3.7), has disabled the protocol, or has no
    consumer group with this name.
    """
    group = patiently(lambda: _consumer_answered(admin, name))
    if group is None or group.error_code in _UNKNOWN:
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
        "members": [_consumer_member(each) for each in group.members],
    }


def _consumer_answered(admin: Any, name: str) -> DescribedGroup | None:
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


def _consumer_member(member: Member) -> dict[str, Any]:
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

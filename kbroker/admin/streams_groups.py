"""Streams groups (KIP-1071) of any Kafka: topology, members, tasks.

Owns the request StreamsGroupDescribe, which kafka-python lacks. group_offsets.py reads and resets the offsets, like
those of other groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.admin.errors import check_code
from kbroker.admin.own_request import ask_patiently
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.streams_groups import (
    DescribedMember,
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
)

Sources = Mapping[str, list[str]]
"""The source topics of each subtopology, by its id."""


def describe_streams_group(admin: Any, name: str) -> dict[str, Any] | None:
    """Return state, epochs, topology and members with their tasks; None if there is no such streams group.

    A member's `partitions` are the partitions that its active tasks read. Raises AdminError.
    """
    request = StreamsGroupDescribeRequest(group_ids=[name])
    answer = ask_patiently(
        admin, name, request, StreamsGroupDescribeResponse, lambda answer: answer.groups[0].error_code
    )
    (group,) = answer.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    check_code(group.error_code, f"cannot describe group {name}", group.error_message)
    topology = _topology(group.topology)
    sources = {
        each["id"]: [*each["source_topics"], *each["repartition_source_topics"]] for each in topology["subtopologies"]
    }
    return {
        "group": name,
        "state": group.group_state,
        "type": "streams",
        "protocol": "streams",
        "assignor": group.assignor_name or None,
        "epoch": group.group_epoch,
        "target_epoch": group.assignment_epoch,
        "topology": topology,
        "members": [_member(each, sources) for each in group.members],
    }


def _topology(topology: DescribedTopology | None) -> dict[str, Any]:
    return {
        "epoch": None if topology is None else topology.epoch,
        "subtopologies": [] if topology is None else [_subtopology(each) for each in topology.subtopologies or ()],
    }


def _subtopology(one: DescribedSubtopology) -> dict[str, Any]:
    return {
        "id": one.subtopology_id,
        "source_topics": sorted(one.source_topics),
        "repartition_source_topics": sorted(each.name for each in one.repartition_source_topics),
        "repartition_sink_topics": sorted(one.repartition_sink_topics),
        "changelog_topics": sorted(each.name for each in one.state_changelog_topics),
    }


def _member(member: DescribedMember, sources: Sources) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "partitions": _partitions(member.assignment.active_tasks, sources),
        "epoch": member.member_epoch,
        "target_partitions": _partitions(member.target_assignment.active_tasks, sources),
        "process_id": member.process_id,
        "topology_epoch": member.topology_epoch,
        "tasks": _tasks(member.assignment),
        "target_tasks": _tasks(member.target_assignment),
    }


def _partitions(tasks: Iterable[TaskIds], sources: Sources) -> list[dict[str, Any]]:
    places = {
        (topic, partition)
        for task in tasks
        for topic in sources.get(task.subtopology_id, ())
        for partition in task.partitions
    }
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(places)]


def _tasks(tasks: DescribedTasks) -> dict[str, list[str]]:
    """Return the tasks of each kind with Kafka Streams' names, like 0_1 for partition 1 of subtopology 0."""
    kinds = {"active": tasks.active_tasks, "standby": tasks.standby_tasks, "warmup": tasks.warmup_tasks}
    return {
        kind: [
            f"{task.subtopology_id}_{partition}"
            for task in sorted(found, key=lambda task: task.subtopology_id)
            for partition in sorted(task.partitions)
        ]
        for kind, found in kinds.items()
    }

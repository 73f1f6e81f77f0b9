"""A StreamsGroupHeartbeat before the lookup of its group: its validity, and its long lists as mappings.

Owns the checks of GroupCoordinatorService.throwIfStreamsGroupHeartbeatRequestIsInvalid, in the same order. Also owns
kbroker's own limits on lists, which exist because a heartbeat is decided in one step.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.group_coordinator.groups.consumer_member import LEAVE_STATIC_EPOCH
from kbroker.group_coordinator.groups.streams_group import Offsets
from kbroker.group_coordinator.topologies.configured_topology import MOST_TASKS
from kbroker.group_coordinator.topologies.tasks import Tasks, TaskSet
from kbroker.group_coordinator.topologies.topology import check as check_topology
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import KeyValue, StreamsGroupHeartbeatRequest, TaskIds, TaskOffset

MOST_TAGS = 100


class Claims(NamedTuple):
    """The lists in a heartbeat. A null list is None."""

    owned: TaskSet | None
    offsets: Offsets | None
    end_offsets: Offsets | None
    tags: dict[str, str] | None


async def claims_of(request: StreamsGroupHeartbeatRequest) -> Claims:
    """Check a request, and return its lists; raises INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
    for each in () if request.topology is None else request.topology.subtopologies:
        if each.source_topic_regex:
            raise _invalid("Regular expressions for source topics are not supported yet.")
        await turn
    _validate(request)
    if request.topology is not None:
        await check_topology(request.topology)
    owned = None
    lists = request.active_tasks, request.standby_tasks, request.warmup_tasks
    active, standby, warmup = lists
    if active is not None and standby is not None and warmup is not None:
        owned = TaskSet(await _tasks(active), await _tasks(standby), await _tasks(warmup))
    return Claims(
        owned,
        await _offsets(request.task_offsets),
        await _offsets(request.task_end_offsets),
        _tags(request.client_tags),
    )


def _validate(request: StreamsGroupHeartbeatRequest) -> None:
    for value, name in (
        (request.member_id, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    epoch = request.member_epoch
    roles = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if epoch == 0:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        for tasks, name in zip(roles, ("ActiveTasks", "StandbyTasks", "WarmupTasks"), strict=True):
            if tasks is None or tasks:
                raise _invalid(f"{name} must be empty when (re-)joining.")
        if request.topology is None:
            raise _invalid("Topology must be non-null when (re-)joining.")
    elif epoch == LEAVE_STATIC_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if any(tasks is None for tasks in roles) and any(tasks is not None for tasks in roles):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if epoch != 0 and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


async def _tasks(lists: Iterable[TaskIds]) -> Tasks:
    found: dict[str, frozenset[int]] = {}
    count = 0
    for each in lists:
        count += len(each.partitions) + 1
        if count > 2 * MOST_TASKS:
            raise _invalid(f"More than {MOST_TASKS} tasks.")
        if each.subtopology_id in found:
            raise _invalid(f"Subtopology {each.subtopology_id} occurs more than once.")
        found[each.subtopology_id] = frozenset(each.partitions)
        await turn
    return found


async def _offsets(reported: Iterable[TaskOffset] | None) -> Offsets | None:
    if reported is None:
        return None
    found: dict[str, dict[int, int]] = {}
    for count, each in enumerate(reported):
        if count >= MOST_TASKS:
            raise _invalid(f"More than {MOST_TASKS} task offsets.")
        known = found.setdefault(each.subtopology_id, {})
        if each.partition in known:
            raise _invalid(
                f"Task offsets contain a duplicate entry for subtopology {each.subtopology_id} and partition "
                f"{each.partition}."
            )
        known[each.partition] = each.offset
        await turn
    return found


def _tags(tags: list[KeyValue] | None) -> dict[str, str] | None:
    if tags is None:
        return None
    if len(tags) > MOST_TAGS:
        raise _invalid(f"More than {MOST_TAGS} client tags.")
    return {each.key: each.value for each in tags}


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)

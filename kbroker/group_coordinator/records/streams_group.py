"""The records of streams groups in `__consumer_offsets`, and their replay.

Owns the bytes: Kafka's records, all values in version 0. A group changes only through `replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from kbroker.coordination.encoding import decode_value, encode
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.groups.streams_member import StreamsMember, StreamsMemberState
from kbroker.group_coordinator.topologies.tasks import NOTHING_HELD, ActiveTasks, HeldTasks, Tasks, TaskSet
from kbroker.group_coordinator.topologies.topology import from_record
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.streams_group_records import (
    CurrentTaskIds,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
)
from kbroker.protocol.messages.streams_groups import Endpoint, KeyValue, TaskIds

GROUP, MEMBER, TARGET, TARGET_MEMBER, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
_VERSION = 0


def _record(key: Any, value: Any) -> CoordinatorRecord:
    return CoordinatorRecord(
        encode(type(key).KEY, key, 0), None if value is None else encode(_VERSION, value, _VERSION)
    )


# -- writing


def group_epoch(
    group: StreamsGroup, epoch: int, metadata_hash: int, validated_epoch: int, configs: Mapping[str, str]
) -> CoordinatorRecord:
    """Return the record of a group's epoch, its topics' hash, and the configs for its next target."""
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=metadata_hash,
        validated_topology_epoch=validated_epoch,
        last_assignment_configs=[KeyValue(name, text) for name, text in sorted(configs.items())],
        stored_description_topology_epoch=group.stored_description_epoch,
        failed_description_topology_epoch=group.failed_description_epoch,
    )
    return _record(StreamsGroupMetadataKey(group.group_id), value)


def topology(group_id: str, value: StreamsGroupTopologyValue) -> CoordinatorRecord:
    """Return the record of a group's topology."""
    return _record(StreamsGroupTopologyKey(group_id), value)


def member_metadata(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """Return the record of a member's metadata."""
    value = StreamsGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else Endpoint(*member.endpoint),
        client_tags=[KeyValue(name, text) for name, text in sorted(member.client_tags.items())],
    )
    return _record(StreamsGroupMemberMetadataKey(group_id, member.member_id), value)


def target_member(group_id: str, member_id: str, tasks: TaskSet) -> CoordinatorRecord:
    """Return the record of a member's target."""
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=task_ids(tasks.active),
        standby_tasks=task_ids(tasks.standby),
        warmup_tasks=task_ids(tasks.warmup),
    )
    return _record(StreamsGroupTargetAssignmentMemberKey(group_id, member_id), value)


def task_ids(tasks: Mapping[str, Iterable[int]]) -> list[TaskIds]:
    """Return tasks in the form that messages use, sorted."""
    return [TaskIds(name, sorted(tasks[name])) for name in sorted(tasks)]


def target_epoch(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    """Return the record of a target's epoch and the time of its computation."""
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return _record(StreamsGroupTargetAssignmentMetadataKey(group_id), value)


def current_assignment(group_id: str, member: StreamsMember) -> CoordinatorRecord:
    """Return the record of a member's current tasks."""
    assigned, pending = member.assigned, member.pending_revocation
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        active_tasks=_with_epochs(assigned.active),
        standby_tasks=_without_epochs(assigned.standby),
        warmup_tasks=_without_epochs(assigned.warmup),
        active_tasks_pending_revocation=_with_epochs(pending.active),
        standby_tasks_pending_revocation=_without_epochs(pending.standby),
        warmup_tasks_pending_revocation=_without_epochs(pending.warmup),
    )
    return _record(StreamsGroupCurrentMemberAssignmentKey(group_id, member.member_id), value)


def _with_epochs(tasks: ActiveTasks) -> list[CurrentTaskIds]:
    return [
        CurrentTaskIds(name, indexes := sorted(tasks[name]), [tasks[name][index] for index in indexes])
        for name in sorted(tasks)
    ]


def _without_epochs(tasks: Tasks) -> list[CurrentTaskIds]:
    return [CurrentTaskIds(name, sorted(tasks[name])) for name in sorted(tasks)]


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of a member."""
    return [
        _record(StreamsGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        _record(StreamsGroupTargetAssignmentMemberKey(group_id, member_id), None),
        _record(StreamsGroupMemberMetadataKey(group_id, member_id), None),
    ]


def group_tombstones(group: StreamsGroup) -> list[CoordinatorRecord]:
    """Return the tombstones of a group without members."""
    group_id = group.group_id
    return [
        _record(StreamsGroupTargetAssignmentMetadataKey(group_id), None),
        _record(StreamsGroupMetadataKey(group_id), None),
        _record(StreamsGroupTopologyKey(group_id), None),
    ]


# -- reading

KINDS = frozenset({GROUP, MEMBER, TARGET, TARGET_MEMBER, CURRENT, TOPOLOGY})
_KEYS: dict[int, type[Any]] = {
    GROUP: StreamsGroupMetadataKey,
    MEMBER: StreamsGroupMemberMetadataKey,
    TARGET: StreamsGroupTargetAssignmentMetadataKey,
    TARGET_MEMBER: StreamsGroupTargetAssignmentMemberKey,
    CURRENT: StreamsGroupCurrentMemberAssignmentKey,
    TOPOLOGY: StreamsGroupTopologyKey,
}
_VALUES: dict[int, type[Any]] = {
    GROUP: StreamsGroupMetadataValue,
    MEMBER: StreamsGroupMemberMetadataValue,
    TARGET: StreamsGroupTargetAssignmentMetadataValue,
    TARGET_MEMBER: StreamsGroupTargetAssignmentMemberValue,
    CURRENT: StreamsGroupCurrentMemberAssignmentValue,
    TOPOLOGY: StreamsGroupTopologyValue,
}


@cache
def _key_reader(kind: int) -> Callable[[Any], Any]:
    return stored_decoder(_KEYS[kind], 0)


def replay(
    kind: int, key: bytes, value: bytes | None, find: Callable[[str, bool], StreamsGroup | None]
) -> StreamsGroup | None:
    """Apply a record to its group, which `find(group id, create)` returns.

    If the record deletes the group, return the group. A tombstone of a missing entry is ignored: compaction may have
    removed the entry. Raises Malformed.
    """
    parsed = _key_reader(kind)(key[2:])
    group = find(parsed.group_id, value is not None)
    if group is None:
        return None
    if value is not None:
        _apply(kind, group, parsed, decode_value(_VALUES[kind], value))
    elif kind == GROUP:
        return group
    else:
        _remove(kind, group, parsed)
    return None


def _apply(kind: int, group: StreamsGroup, key: Any, value: Any) -> None:
    if kind == GROUP:
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        group.validated_topology_epoch = value.validated_topology_epoch
        group.stored_description_epoch = value.stored_description_topology_epoch
        group.failed_description_epoch = value.failed_description_topology_epoch
        group.assignment_configs = {each.key: each.value for each in value.last_assignment_configs or ()}
    elif kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = value.assignment_epoch, value.assignment_timestamp
    elif kind == TARGET_MEMBER:
        lists = value.active_tasks, value.standby_tasks, value.warmup_tasks
        group.target[key.member_id] = TaskSet(*map(tasks_of, lists))
    elif kind == TOPOLOGY:
        group.put_topology(from_record(value))
    else:
        known = group.members.get(key.member_id) or StreamsMember(key.member_id)
        group.put_member(_with_metadata(known, value) if kind == MEMBER else _with_tasks(known, value))


def _remove(kind: int, group: StreamsGroup, key: Any) -> None:
    if kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = -1, 0
    elif kind == TARGET_MEMBER:
        group.target.pop(key.member_id, None)
    elif kind == TOPOLOGY:
        group.put_topology(None)
    elif kind == MEMBER:
        group.remove_member(key.member_id)
    else:
        known = group.members.get(key.member_id)
        if known is not None:
            left = replace(known, member_epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH)
            group.put_member(replace(left, assigned=NOTHING_HELD, pending_revocation=NOTHING_HELD))


def tasks_of(lists: Iterable[TaskIds | CurrentTaskIds]) -> Tasks:
    """Return tasks in the form that messages use as a mapping; the last list of a subtopology counts."""
    return {each.subtopology_id: frozenset(each.partitions) for each in lists}


def _with_metadata(member: StreamsMember, value: StreamsGroupMemberMetadataValue) -> StreamsMember:
    endpoint = value.user_endpoint
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        topology_epoch=value.topology_epoch,
        process_id=value.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        client_tags={each.key: each.value for each in value.client_tags},
    )


def _with_tasks(member: StreamsMember, value: StreamsGroupCurrentMemberAssignmentValue) -> StreamsMember:
    epoch = value.member_epoch
    return replace(
        member,
        member_epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=StreamsMemberState.of(value.state),
        assigned=HeldTasks(
            _epochs(value.active_tasks, epoch), tasks_of(value.standby_tasks), tasks_of(value.warmup_tasks)
        ),
        pending_revocation=HeldTasks(
            _epochs(value.active_tasks_pending_revocation, epoch),
            tasks_of(value.standby_tasks_pending_revocation),
            tasks_of(value.warmup_tasks_pending_revocation),
        ),
    )


def _epochs(lists: Iterable[CurrentTaskIds], default: int) -> ActiveTasks:
    """Return tasks with their epochs, or with `default` if an older record has no epochs."""
    return {
        each.subtopology_id: dict(zip(each.partitions, each.assignment_epochs, strict=True))
        if each.assignment_epochs and len(each.assignment_epochs) == len(each.partitions)
        else dict.fromkeys(each.partitions, default)
        for each in lists
    }

"""The records of share groups in `__consumer_offsets`: encoding, and their effect on a group.

Owns the bytes of keys and values, and the changes that each record causes. As in Kafka, a member's tombstones have the
order assignment, target, metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from kbroker.coordination.encoding import decode_value, encode
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.assignment import Partitions
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH, MemberState
from kbroker.group_coordinator.groups.share_group import ShareGroup, ShareMember, StatePartitions, Used, UsedTopic
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.coordinator_records import TopicPartition
from kbroker.protocol.messages.share_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)

MEMBER, GROUP, TARGET, TARGET_MEMBER, CURRENT, STATE_PARTITIONS = range(10, 16)
KINDS: Final = frozenset({MEMBER, GROUP, TARGET, TARGET_MEMBER, CURRENT, STATE_PARTITIONS})


def _record(key: Any, value: Any) -> CoordinatorRecord:
    return CoordinatorRecord(encode(type(key).KEY, key, 0), None if value is None else encode(0, value, 0))


def member_metadata(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """Return the record of the data that a member sends about itself."""
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
    )
    return _record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of a group's epoch, and of the hash of its topics."""
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return _record(ShareGroupMetadataKey(group_id=group_id), value)


def target_epoch(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    """Return the record of a target's epoch and the time of its computation."""
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return _record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_member(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    """Return the record of a member's part of the target."""
    value = ShareGroupTargetAssignmentMemberValue(topic_partitions=_to_wire(target))
    return _record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_assignment(group_id: str, member: ShareMember) -> CoordinatorRecord:
    """Return the record of a member's epoch and partitions."""
    value = ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_to_wire(member.assigned),
    )
    return _record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def state_partitions(group_id: str, held: StatePartitions) -> CoordinatorRecord:
    """Return the record of the share partitions that a group has used."""
    value = ShareGroupStatePartitionMetadataValue(
        initializing_topics=_used_to_wire(held.initializing),
        initialized_topics=_used_to_wire(held.initialized),
        deleting_topics=[TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in held.deleting.items()],
    )
    return _record(ShareGroupStatePartitionMetadataKey(group_id=group_id), value)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of a member."""
    return [
        _record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        _record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        _record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of a group without members."""
    return [
        _record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        _record(ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        _record(ShareGroupMetadataKey(group_id=group_id), None),
    ]


def _to_wire(partitions: Partitions) -> list[TopicPartition]:
    return [TopicPartition(topic_id=topic_id, partitions=sorted(each)) for topic_id, each in partitions.items()]


def _used_to_wire(used: Used) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in used.items()
    ]


# -- reading

_KEYS: Mapping[int, type[Any]] = {
    MEMBER: ShareGroupMemberMetadataKey,
    GROUP: ShareGroupMetadataKey,
    TARGET: ShareGroupTargetAssignmentMetadataKey,
    TARGET_MEMBER: ShareGroupTargetAssignmentMemberKey,
    CURRENT: ShareGroupCurrentMemberAssignmentKey,
    STATE_PARTITIONS: ShareGroupStatePartitionMetadataKey,
}
_VALUES: Mapping[int, type[Any]] = {
    MEMBER: ShareGroupMemberMetadataValue,
    GROUP: ShareGroupMetadataValue,
    TARGET: ShareGroupTargetAssignmentMetadataValue,
    TARGET_MEMBER: ShareGroupTargetAssignmentMemberValue,
    CURRENT: ShareGroupCurrentMemberAssignmentValue,
    STATE_PARTITIONS: ShareGroupStatePartitionMetadataValue,
}


@cache
def _key_reader(kind: int) -> Callable[[Any], Any]:
    return stored_decoder(_KEYS[kind], 0)


def replay(
    kind: int, key: bytes, value: bytes | None, find: Callable[[str, bool], ShareGroup | None], now_ms: int
) -> ShareGroup | None:
    """Apply a record to its group, which `find(group id, create)` returns.

    If the record deletes the group, return the group. `now_ms` is the time of the decision that wrote the record. A
    tombstone of a missing entry is ignored: compaction may have removed the entry. Raises Malformed.
    """
    parsed = _key_reader(kind)(key[2:])
    group = find(parsed.group_id, value is not None)
    if group is None:
        return None
    if value is not None:
        _apply(kind, group, parsed, decode_value(_VALUES[kind], value), now_ms)
    elif kind == GROUP:
        return group
    else:
        _remove(kind, group, parsed)
    return None


def _apply(kind: int, group: ShareGroup, key: Any, value: Any, now_ms: int) -> None:
    if kind == GROUP:
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    elif kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = value.assignment_epoch, value.assignment_timestamp
    elif kind == TARGET_MEMBER:
        group.target[key.member_id] = _from_wire(value.topic_partitions)
        group.checked_version = 0
    elif kind == STATE_PARTITIONS:
        group.state_partitions = StatePartitions(
            _used_from_wire(value.initializing_topics),
            _used_from_wire(value.initialized_topics),
            {bytes(each.topic_id): each.topic_name for each in value.deleting_topics},
        )
        group.initializing_since = now_ms
        group.checked_version = 0
    else:
        known = group.members.get(key.member_id) or ShareMember(key.member_id)
        group.put_member(_with_metadata(known, value) if kind == MEMBER else _with_assignment(known, value))


def _remove(kind: int, group: ShareGroup, key: Any) -> None:
    group.checked_version = 0
    if kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = -1, 0
    elif kind == TARGET_MEMBER:
        group.target.pop(key.member_id, None)
    elif kind == STATE_PARTITIONS:
        group.state_partitions = None
    elif kind == MEMBER:
        group.remove_member(key.member_id)
    else:
        known = group.members.get(key.member_id)
        if known is not None:
            group.put_member(replace(known, member_epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}))


def _with_metadata(member: ShareMember, value: ShareGroupMemberMetadataValue) -> ShareMember:
    return replace(
        member,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )


def _with_assignment(member: ShareMember, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState.of(value.state),
        assigned=_from_wire(value.assigned_partitions),
    )


def _from_wire(topics: Iterable[TopicPartition]) -> Partitions:
    return {bytes(each.topic_id): frozenset(each.partitions) for each in topics}


def _used_from_wire(topics: Iterable[TopicPartitionsInfo]) -> Used:
    return {bytes(each.topic_id): UsedTopic(each.topic_name, frozenset(each.partitions)) for each in topics}

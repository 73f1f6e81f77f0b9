"""The records of consumer groups in `__consumer_offsets`, and their replay.

Owns the bytes: Kafka 4.4's records, all values in version 0. A group changes only through `replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from kbroker.coordination.encoding import decode_value, encode
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.assignment import Epochs, Partitions
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup, ResolvedRegex
from kbroker.group_coordinator.groups.consumer_member import LEAVE_EPOCH, ClassicSide, ConsumerMember, MemberState
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.coordinator_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
_VERSION = 0


def _key(message: Any) -> bytes:
    return encode(type(message).KEY, message, 0)


def _record(key: Any, value: Any) -> CoordinatorRecord:
    return CoordinatorRecord(_key(key), None if value is None else encode(_VERSION, value, _VERSION))


# -- writing


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Return the record of a group's epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return _record(ConsumerGroupMetadataKey(group_id=group_id), value)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the tombstone of a record that only Apache Kafka before 4.1 writes."""
    return _record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def member_metadata(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of a member's metadata and subscription."""
    classic = None
    if member.classic is not None:
        classic = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=n, metadata=m) for n, m in member.classic.protocols],
        )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=classic,
    )
    return _record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value)


def target_member(group_id: str, member_id: str, partitions: Partitions) -> CoordinatorRecord:
    """Return the record of a member's target."""
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(indexes)) for topic_id, indexes in partitions.items()
        ]
    )
    return _record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_epoch(group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
    """Return the record of a target's epoch and the time of its computation."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=now_ms)
    return _record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def current_assignment(group_id: str, member: ConsumerMember) -> CoordinatorRecord:
    """Return the record of a member's current assignment."""
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_topic_partitions(member.assigned),
        partitions_pending_revocation=_topic_partitions(member.pending_revocation),
    )
    return _record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value)


def _topic_partitions(epochs: Epochs) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic_id, partitions=list(indexes), assignment_epochs=list(indexes.values()))
        for topic_id, indexes in epochs.items()
    ]


def resolved_regex(group_id: str, regex: str, resolved: ResolvedRegex | None) -> CoordinatorRecord:
    """Return the record of a pattern's topics; None if no member subscribes to it any more."""
    value = None
    if resolved is not None:
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
        )
    return _record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), value)


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Return the tombstones of a member."""
    return [
        _record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        _record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        _record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: ConsumerGroup, renamed: tuple[str, str] | None = None) -> list[CoordinatorRecord]:
    """Return the tombstones of a group.

    `renamed` is a pair of member ids: the old id, and the new id that the log contains instead of the old id.
    """
    group_id = group.group_id
    ids = [renamed[1] if renamed and member_id == renamed[0] else member_id for member_id in group.members]
    current = ConsumerGroupCurrentMemberAssignmentKey
    out = [_record(current(group_id=group_id, member_id=each), None) for each in ids]
    target = ConsumerGroupTargetAssignmentMemberKey
    out += [_record(target(group_id=group_id, member_id=each), None) for each in ids]
    out.append(_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    member = ConsumerGroupMemberMetadataKey
    out += [_record(member(group_id=group_id, member_id=each), None) for each in ids]
    out += [resolved_regex(group_id, regex, None) for regex in group.resolved]
    out.append(partition_metadata_tombstone(group_id))
    out.append(_record(ConsumerGroupMetadataKey(group_id=group_id), None))
    return out


# -- reading

KINDS = frozenset({GROUP, PARTITION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, REGEX})
_KEYS: dict[int, type[Any]] = {
    GROUP: ConsumerGroupMetadataKey,
    PARTITION_METADATA: ConsumerGroupPartitionMetadataKey,
    MEMBER: ConsumerGroupMemberMetadataKey,
    TARGET: ConsumerGroupTargetAssignmentMetadataKey,
    TARGET_MEMBER: ConsumerGroupTargetAssignmentMemberKey,
    CURRENT: ConsumerGroupCurrentMemberAssignmentKey,
    REGEX: ConsumerGroupRegularExpressionKey,
}
_VALUES: dict[int, type[Any]] = {
    GROUP: ConsumerGroupMetadataValue,
    MEMBER: ConsumerGroupMemberMetadataValue,
    TARGET: ConsumerGroupTargetAssignmentMetadataValue,
    TARGET_MEMBER: ConsumerGroupTargetAssignmentMemberValue,
    CURRENT: ConsumerGroupCurrentMemberAssignmentValue,
    REGEX: ConsumerGroupRegularExpressionValue,
}


@cache
def _key_reader(kind: int) -> Callable[[Any], Any]:
    return stored_decoder(_KEYS[kind], 0)


def replay(
    kind: int, key: bytes, value: bytes | None, find: Callable[[str, bool], ConsumerGroup | None]
) -> ConsumerGroup | None:
    """Apply a record to its group, which `find(group id, create)` returns.

    If the record deletes the group, return the group. A tombstone of a missing entry is ignored: compaction may have
    removed the entry. Raises Malformed.
    """
    parsed = _key_reader(kind)(key[2:])
    group = find(parsed.group_id, value is not None)
    if group is None:
        return None
    if kind == PARTITION_METADATA:
        group.has_partition_metadata_record = value is not None
    elif value is not None:
        _apply(kind, group, parsed, decode_value(_VALUES[kind], value))
    elif kind == GROUP:
        return group
    else:
        _remove(kind, group, parsed)
    return None


def _apply(kind: int, group: ConsumerGroup, key: Any, value: Any) -> None:
    if kind == GROUP:
        group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
    elif kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = value.assignment_epoch, value.assignment_timestamp
    elif kind == TARGET_MEMBER:
        group.target[key.member_id] = {t.topic_id: frozenset(t.partitions) for t in value.topic_partitions}
    elif kind == REGEX:
        resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
        group.put_resolved(key.regular_expression, resolved)
    else:
        known = group.members.get(key.member_id) or ConsumerMember(key.member_id)
        group.put_member(_with_metadata(known, value) if kind == MEMBER else _with_assignment(known, value))


def _remove(kind: int, group: ConsumerGroup, key: Any) -> None:
    if kind == TARGET:
        group.assignment_epoch, group.assignment_timestamp = -1, 0
    elif kind == TARGET_MEMBER:
        group.target.pop(key.member_id, None)
    elif kind == REGEX:
        group.put_resolved(key.regular_expression, None)
    elif kind == MEMBER:
        group.remove_member(key.member_id)
    else:
        known = group.members.get(key.member_id)
        if known is not None:
            left = replace(
                known, member_epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={}, pending_revocation={}
            )
            group.put_member(left)


def _with_metadata(member: ConsumerMember, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
    held = value.classic_member_metadata
    classic = None
    if held is not None:
        protocols = tuple((protocol.name, protocol.metadata) for protocol in held.supported_protocols)
        classic = ClassicSide(held.session_timeout_ms, protocols)
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=classic,
    )


def _with_assignment(member: ConsumerMember, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
    epoch = max(value.member_epoch, 0)
    return replace(
        member,
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=MemberState.of(value.state),
        assigned=_epochs(value.assigned_partitions, epoch),
        pending_revocation=_epochs(value.partitions_pending_revocation, epoch),
    )


def _epochs(topics: list[TopicPartitions], default: int) -> Epochs:
    """Return partitions with their epochs, or with `default` if an older record has no epochs."""
    return {
        t.topic_id: dict(zip(t.partitions, t.assignment_epochs, strict=True))
        if t.assignment_epochs and len(t.assignment_epochs) == len(t.partitions)
        else dict.fromkeys(t.partitions, default)
        for t in topics
    }

"""The record of a classic group in `__consumer_offsets`: its generation with members and assignments.

Owns its bytes (GroupMetadata, written in version 3 as Kafka 4.4 does), and the group restored from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.coordination.encoding import decode_value, encode
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.groups.classic_group import STABLE, ClassicGroup, Member
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.coordinator_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata

GROUP_METADATA = 2
_VERSION = 3

read_group_key = stored_decoder(GroupMetadataKey, 0)


def group_key(group_id: str) -> bytes:
    """Return the key of a group's metadata."""
    return encode(GROUP_METADATA, GroupMetadataKey(group=group_id), 0)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a group."""
    return CoordinatorRecord(group_key(group_id), None)


def empty_group_metadata(group: ClassicGroup) -> CoordinatorRecord:
    """Return the record of a group that has never had members."""
    value = GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=group.state_timestamp
    )
    return CoordinatorRecord(group_key(group.group_id), encode(_VERSION, value, _VERSION))


def group_metadata(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    """Return the record of a group's generation with these assignments by member id."""
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol_name),
            assignment=assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=group.state_timestamp,
        members=members,
    )
    return CoordinatorRecord(group_key(group.group_id), encode(_VERSION, value, _VERSION))


def restore(group_id: str, data: bytes) -> ClassicGroup:
    """Return the group that a record describes: Stable if it has members, else Empty. Raises Malformed."""
    value = decode_value(GroupMetadataValue, data)
    group = ClassicGroup(group_id, value.current_state_timestamp)
    group.generation = value.generation
    group.protocol_name = value.protocol
    group.leader_id = value.leader
    for member in value.members:
        group.add(
            Member(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.session_timeout
                if member.rebalance_timeout == -1
                else member.rebalance_timeout,
                session_timeout_ms=member.session_timeout,
                protocol_type=value.protocol_type,
                protocols=((value.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
        )
    group.protocol_type = value.protocol_type or None
    if group.members:
        group.state = STABLE
        group.unled = value.leader is None
    return group

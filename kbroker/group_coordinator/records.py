"""What the group coordinator writes into `__consumer_offsets`, and how it reads that.

Owns the bytes of keys and values: an int16 (the record type in a key, the version in a value), then the message. The
versions written are Kafka 4.3's: OffsetCommitValue 4, or 1 where the commit carries its own expiry, and
GroupMetadataValue 3. Never touches the state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from kbroker.coordination.outcome import CoordinatorRecord
from kbroker.group_coordinator.group import ClassicGroup
from kbroker.protocol.compiler import decoder, encoder
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2

_GROUP_METADATA_VERSION = 3
_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1
_UNENCODABLE = (struct.error, UnicodeEncodeError, OverflowError)

read_offset_key = decoder(OffsetCommitKey, 0)
read_group_key = decoder(GroupMetadataKey, 0)
read_legacy_offset_value = decoder(LegacyOffsetCommitValue, 0)

_write_offset_key = encoder(OffsetCommitKey, 0)
_write_offset_value = encoder(OffsetCommitValue, _OFFSET_VERSION)
_write_offset_value_with_expiry = encoder(OffsetCommitValue, _OFFSET_VERSION_WITH_EXPIRY)


@cache
def offset_value_reader(version: int) -> Callable[[Any], OffsetCommitValue]:
    """Return the decoder of an OffsetCommitValue; a version yet unknown only adds tags."""
    return decoder(OffsetCommitValue, min(version, OffsetCommitValue.VERSIONS.high))  # type: ignore[attr-defined]


@cache
def group_value_reader(version: int) -> Callable[[Any], GroupMetadataValue]:
    """Return the decoder of a GroupMetadataValue."""
    return decoder(GroupMetadataValue, min(version, GroupMetadataValue.VERSIONS.high))  # type: ignore[attr-defined]


@lru_cache(maxsize=8192)
def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key under which a group's offset in a partition lies."""
    out = bytearray(b"\0\1")
    try:
        _write_offset_key(OffsetCommitKey(group=group_id, topic=topic, partition=partition), out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return bytes(out)


def offset_commit(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    with_expiry = value.expire_timestamp != -1
    out = bytearray(b"\0\1" if with_expiry else b"\0\4")
    write = _write_offset_value_with_expiry if with_expiry else _write_offset_value
    try:
        write(value, out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return CoordinatorRecord(offset_key(group_id, topic, partition), bytes(out))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(offset_key(group_id, topic, partition), None)


def group_key(group_id: str) -> bytes:
    """Return the key under which a group's metadata lies."""
    return encode(GROUP_METADATA, GroupMetadataKey(group=group_id), 0)


def group_tombstone(group_id: str) -> CoordinatorRecord:
    """Return the record that deletes a group."""
    return CoordinatorRecord(group_key(group_id), None)


def empty_group_metadata(group: ClassicGroup) -> CoordinatorRecord:
    """Return the record of a group that nobody has been in yet."""
    value = GroupMetadataValue(
        protocol_type="", generation=0, protocol=None, leader=None, current_state_timestamp=group.state_timestamp
    )
    return CoordinatorRecord(group_key(group.group_id), encode(_GROUP_METADATA_VERSION, value, _GROUP_METADATA_VERSION))


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
    return CoordinatorRecord(group_key(group.group_id), encode(_GROUP_METADATA_VERSION, value, _GROUP_METADATA_VERSION))


def encode(prefix: int, message: Any, version: int) -> bytes:
    """Return int16 `prefix` and a message. A string too long for the format is an error of the request, not of ours."""
    out = bytearray(prefix.to_bytes(2, "big"))
    try:
        encoder(type(message), version)(message, out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return bytes(out)

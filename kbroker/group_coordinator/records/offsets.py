"""The records of committed offsets in `__consumer_offsets`.

Owns the bytes of keys and values. The versions written are Kafka 4.3's: OffsetCommitValue 4, or 1 where the commit
carries its own expiry. Never touches the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from kbroker.coordination.encoding import UNENCODABLE, encode
from kbroker.coordination.outcome import CoordinatorRecord
from kbroker.protocol.compiler import decoder, encoder
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_records import LegacyOffsetCommitValue, OffsetCommitKey, OffsetCommitValue

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1

_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1

read_offset_key = decoder(OffsetCommitKey, 0)
read_legacy_offset_value = decoder(LegacyOffsetCommitValue, 0)

_write_offset_value = encoder(OffsetCommitValue, _OFFSET_VERSION)
_write_offset_value_with_expiry = encoder(OffsetCommitValue, _OFFSET_VERSION_WITH_EXPIRY)


@cache
def offset_value_reader(version: int) -> Callable[[Any], OffsetCommitValue]:
    """Return the decoder of an OffsetCommitValue; a version yet unknown only adds tags."""
    return decoder(OffsetCommitValue, min(version, OffsetCommitValue.VERSIONS.high))  # type: ignore[attr-defined]


@lru_cache(maxsize=8192)
def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key under which a group's offset in a partition lies."""
    return encode(OFFSET_COMMIT, OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)


def offset_commit(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    with_expiry = value.expire_timestamp != -1
    out = bytearray(b"\0\1" if with_expiry else b"\0\4")
    write = _write_offset_value_with_expiry if with_expiry else _write_offset_value
    try:
        write(value, out, [])
    except UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return CoordinatorRecord(offset_key(group_id, topic, partition), bytes(out))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(offset_key(group_id, topic, partition), None)

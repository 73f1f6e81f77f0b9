"""The records of committed offsets in `__consumer_offsets`.

Owns the bytes of keys and values. The versions written are Kafka 4.3's: OffsetCommitValue 4, or 1 where the commit
carries its own expiry. Never touches the state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from kbroker.coordination.encoding import encode
from kbroker.coordination.outcome import CoordinatorRecord
from kbroker.protocol.compiler import decoder
from kbroker.protocol.messages.group_records import LegacyOffsetCommitValue, OffsetCommitKey, OffsetCommitValue

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1

_VERSION, _VERSION_WITH_EXPIRY = 4, 1

read_offset_key = decoder(OffsetCommitKey, 0)
_read_legacy_value = decoder(LegacyOffsetCommitValue, 0)


def read_offset_value(kind: int, data: bytes) -> OffsetCommitValue:
    """Return the offset that a value of a key of `kind` stands for."""
    if kind == LEGACY_OFFSET_COMMIT:
        old = _read_legacy_value(data[2:])
        return OffsetCommitValue(offset=old.offset, metadata=old.metadata, commit_timestamp=old.commit_timestamp)
    return _value_reader(data[0] << 8 | data[1])(data[2:])


@cache
def _value_reader(version: int) -> Callable[[Any], OffsetCommitValue]:
    """Return the decoder of an OffsetCommitValue; a version yet unknown only adds tags."""
    return decoder(OffsetCommitValue, min(version, OffsetCommitValue.VERSIONS.high))  # type: ignore[attr-defined]


@lru_cache(maxsize=8192)
def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key under which a group's offset in a partition lies."""
    return encode(OFFSET_COMMIT, OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)


def offset_commit(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    version = _VERSION if value.expire_timestamp == -1 else _VERSION_WITH_EXPIRY
    return CoordinatorRecord(offset_key(group_id, topic, partition), encode(version, value, version))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(offset_key(group_id, topic, partition), None)

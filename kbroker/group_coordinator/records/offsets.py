"""The records of committed offsets in `__consumer_offsets`.

Owns the bytes of keys and values. The written versions are Kafka 4.4's: OffsetCommitValue 4, or 1 if the commit has its
own expiry. Never touches the state.
"""

from __future__ import annotations

from functools import lru_cache

from kbroker.coordination.encoding import decode_value, encode
from kbroker.coordination.partitioning import SHORT_ID
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages.coordinator_records import LegacyOffsetCommitValue, OffsetCommitKey, OffsetCommitValue

LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1

_VERSION, _VERSION_WITH_EXPIRY = 4, 1

read_offset_key = stored_decoder(OffsetCommitKey, 0)


def read_offset_value(kind: int, data: bytes) -> OffsetCommitValue:
    """Return the offset in a value whose key is of `kind`. Raises Malformed."""
    if kind == LEGACY_OFFSET_COMMIT:
        old = decode_value(LegacyOffsetCommitValue, data)
        return OffsetCommitValue(offset=old.offset, metadata=old.metadata, commit_timestamp=old.commit_timestamp)
    return decode_value(OffsetCommitValue, data)


@lru_cache(maxsize=8192)
def _short_key(group_id: str, topic: str, partition: int) -> bytes:
    return encode(OFFSET_COMMIT, OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return the key of a group's offset in a partition."""
    return (_short_key if len(group_id) <= SHORT_ID else _short_key.__wrapped__)(group_id, topic, partition)


def offset_commit(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> CoordinatorRecord:
    """Return the record of a committed offset."""
    version = _VERSION if value.expire_timestamp == -1 else _VERSION_WITH_EXPIRY
    return CoordinatorRecord(offset_key(group_id, topic, partition), encode(version, value, version))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(offset_key(group_id, topic, partition), None)

"""The stored state of one share partition, and its records in `__share_group_state`.

Owns the bytes of keys and values (a snapshot, then updates), and the state after an update. The value is immutable: a
decision creates a record, and the replay of the record replaces the state. Never decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kbroker.coordination.encoding import decode_value, encode, read_prefix
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.compiler import stored_decoder
from kbroker.protocol.messages import share_state
from kbroker.protocol.messages.share_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from kbroker.share_coordinator.state_batches import NO_BATCHES, Batches, StateBatch, combined, in_order, stored

SNAPSHOT: Final = 0
UPDATE: Final = 1
UNKNOWN: Final = -1
"""An offset, epoch or count that is not known yet."""

_read_snapshot_key = stored_decoder(ShareSnapshotKey, 0)
_read_update_key = stored_decoder(ShareUpdateKey, 0)


class SharePartition(NamedTuple):
    """A partition of a topic, as consumed by one group."""

    group: str
    topic_id: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class SharePartitionState:
    """The progress of delivery (Kafka: ShareGroupOffset). Timestamps are in ms.

    `delivery_complete_count` is the number of offsets at or after the start offset whose delivery has ended, -1 if
    unknown. The times of creation and of writing differ if the state was last written only because it was old.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = UNKNOWN
    batches: Batches = NO_BATCHES
    created_ms: int = 0
    written_ms: int = 0

    @property
    def is_cold(self) -> bool:
        """Whether the newest snapshot was written only because the state was old."""
        return self.created_ms != self.written_ms


def snapshot_record(place: SharePartition, state: SharePartitionState) -> CoordinatorRecord:
    """Return the record of the complete state."""
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=batches_to_wire(state.batches),
    )
    return CoordinatorRecord(_snapshot_key(place), encode(0, value, 0))


def update_record(
    place: SharePartition,
    snapshot_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Sequence[StateBatch],
) -> CoordinatorRecord:
    """Return the record of a change; `batches` contains only the changed state batches."""
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        state_batches=batches_to_wire(batches),
    )
    group, topic_id, partition = place
    key = ShareUpdateKey(group_id=group, topic_id=topic_id, partition=partition)
    return CoordinatorRecord(encode(UPDATE, key, 0), encode(0, value, 0))


def state_tombstone(place: SharePartition) -> CoordinatorRecord:
    """Return the record that deletes a share partition's state."""
    return CoordinatorRecord(_snapshot_key(place), None)


def _snapshot_key(place: SharePartition) -> bytes:
    group, topic_id, partition = place
    return encode(SNAPSHOT, ShareSnapshotKey(group_id=group, topic_id=topic_id, partition=partition), 0)


def read_key(key: bytes) -> tuple[int, SharePartition | None]:
    """Return a record's type and its share partition (None if the type is unknown). Raises Malformed."""
    kind = read_prefix(key, "key")
    if kind not in (SNAPSHOT, UPDATE):
        return kind, None
    read = (_read_snapshot_key if kind == SNAPSHOT else _read_update_key)(key[2:])
    return kind, SharePartition(read.group_id, bytes(read.topic_id), read.partition)


def read_snapshot(value: bytes) -> SharePartitionState:
    """Return the state in a snapshot. Raises Malformed."""
    read = decode_value(ShareSnapshotValue, value)
    return SharePartitionState(
        snapshot_epoch=read.snapshot_epoch,
        state_epoch=read.state_epoch,
        leader_epoch=read.leader_epoch,
        start_offset=read.start_offset,
        delivery_complete_count=read.delivery_complete_count,
        batches=stored(in_order(_ranges(read.state_batches))),
        created_ms=read.create_timestamp,
        written_ms=read.write_timestamp,
    )


def read_update(value: bytes, known: SharePartitionState | None) -> tuple[SharePartitionState, int]:
    """Return the state after an update, and the update's leader epoch. Raises Malformed."""
    read = decode_value(ShareUpdateValue, value)
    if known is None:
        state = SharePartitionState(
            snapshot_epoch=read.snapshot_epoch,
            state_epoch=0,
            leader_epoch=read.leader_epoch,
            start_offset=read.start_offset,
            delivery_complete_count=read.delivery_complete_count,
            batches=stored(in_order(_ranges(read.state_batches))),
        )
        return state, read.leader_epoch
    start_offset = known.start_offset if read.start_offset == UNKNOWN else read.start_offset
    state = replace(
        known,
        start_offset=start_offset,
        delivery_complete_count=read.delivery_complete_count,
        leader_epoch=known.leader_epoch if read.leader_epoch == UNKNOWN else read.leader_epoch,
        batches=combined(known.batches, _ranges(read.state_batches), start_offset),
    )
    return state, read.leader_epoch


def batches_to_wire(batches: Iterable[StateBatch]) -> list[share_state.StateBatch]:
    """Return state batches in the form that messages and records use."""
    return [share_state.StateBatch(*each) for each in batches]


def batches_from_wire(batches: Iterable[share_state.StateBatch]) -> list[StateBatch]:
    """Return the state batches of a message or record."""
    return [StateBatch(e.first_offset, e.last_offset, e.delivery_state, e.delivery_count) for e in batches]


def _ranges(batches: Iterable[share_state.StateBatch]) -> list[StateBatch]:
    """Return the state batches of a record, without batches that end before they begin."""
    return [each for each in batches_from_wire(batches) if each.first_offset <= each.last_offset]

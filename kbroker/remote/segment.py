"""One segment of a partition in remote storage, as its records describe it, and the states of a segment.

Owns the values and the legal transitions. Never knows other segments: kbroker/remote/segments.py does.

Sources: RemoteLogSegmentMetadata, RemoteLogSegmentState and RemotePartitionDeleteState of Apache Kafka (KIP-405).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain
from typing import Final


class SegmentState(IntEnum):
    """The state of a segment in remote storage."""

    COPY_SEGMENT_STARTED = 0
    """The copy of the segment is not complete, so no broker reads it."""
    COPY_SEGMENT_FINISHED = 1
    """The segment can be read."""
    DELETE_SEGMENT_STARTED = 2
    """No broker reads the segment any more. Its object may still exist."""
    DELETE_SEGMENT_FINISHED = 3
    """The segment does not exist any more."""


class DeleteState(IntEnum):
    """The state of a partition whose topic is deleted."""

    DELETE_PARTITION_MARKED = 0
    """All segments of the partition must be deleted."""
    DELETE_PARTITION_STARTED = 1
    """The deletion of the segments has started."""
    DELETE_PARTITION_FINISHED = 2
    """No segment exists any more."""


_SEGMENT_STEPS: Final = {
    (None, SegmentState.COPY_SEGMENT_STARTED),
    (SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED),
    (SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED),
    (SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED),
    (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED),
}


def may_become(current: SegmentState | None, target: SegmentState) -> bool:
    """Return whether a segment may change to a state. A segment may also keep its state.

    `current` is None for an unknown segment.
    """
    return current is target or (current, target) in _SEGMENT_STEPS


def deletion_may_become(current: DeleteState | None, target: DeleteState) -> bool:
    """Return whether the deletion of a partition may change to a state. A deletion may also keep its state.

    `current` is None if the partition is not marked for deletion.
    """
    if current is None:
        return target is DeleteState.DELETE_PARTITION_MARKED
    return target in (current, current + 1)


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment in remote storage. Offsets are inclusive; times are milliseconds since 1970.

    `epochs` has a pair (leader epoch, first offset) for each leader epoch that the segment contains, ordered by epoch.
    There is at least one pair.
    """

    id: bytes
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    broker_id: int
    size: int
    epochs: tuple[tuple[int, int], ...]
    state: SegmentState = SegmentState.COPY_SEGMENT_STARTED
    custom: bytes | None = None
    """The data that the remote store returned for the copy. The store needs them to find the segment again."""
    no_aborted_transactions: bool = False
    """Whether the segment's transaction index is empty (`txnIndexEmpty`). False also means: unknown."""

    def end_in_epoch(self, epoch: int) -> int:
        """Return the last offset of the segment that belongs to a leader epoch."""
        return next((start - 1 for each, start in self.epochs if each > epoch), self.end_offset)

    def updated(
        self, state: SegmentState, broker_id: int, event_timestamp_ms: int, custom: bytes | None
    ) -> RemoteSegment:
        """Return the segment after an update (RemoteLogSegmentMetadata.createWithUpdates)."""
        return replace(self, state=state, broker_id=broker_id, event_timestamp_ms=event_timestamp_ms, custom=custom)


_FIXED: Final = struct.Struct(">qqqqiibbI")
_EPOCH: Final = struct.Struct(">iq")
_HAS_CUSTOM: Final = 1
_NO_ABORTED: Final = 2


def pack(segment: RemoteSegment) -> bytes:
    """Return a segment as bytes, without its id.

    These bytes are for memory only, and take a third of the memory of the object.
    """
    flags = (_HAS_CUSTOM if segment.custom is not None else 0) | (_NO_ABORTED if segment.no_aborted_transactions else 0)
    fixed = _FIXED.pack(
        segment.start_offset,
        segment.end_offset,
        segment.max_timestamp_ms,
        segment.event_timestamp_ms,
        segment.broker_id,
        segment.size,
        segment.state,
        flags,
        len(segment.epochs),
    )
    return b"".join(chain((fixed,), (_EPOCH.pack(*each) for each in segment.epochs), (segment.custom or b"",)))


def packed_start(packed: bytes) -> int:
    """Return the start offset of a segment that `pack` packed."""
    return int.from_bytes(packed[:8], "big", signed=True)


def unpack(segment_id: bytes, packed: bytes) -> RemoteSegment:
    """Return the segment that `pack` packed into these bytes."""
    start, end, newest, event, broker, size, state, flags, count = _FIXED.unpack_from(packed)
    epochs_end = _FIXED.size + count * _EPOCH.size
    return RemoteSegment(
        segment_id,
        start,
        end,
        newest,
        event,
        broker,
        size,
        tuple(_EPOCH.iter_unpack(packed[_FIXED.size : epochs_end])),
        SegmentState(state),
        packed[epochs_end:] if flags & _HAS_CUSTOM else None,
        bool(flags & _NO_ABORTED),
    )

"""The state of a log behind its remote records, for a follower that lacks these records.

Owns the search for the segment, and the read of its object. Never changes a log (Apache Kafka: TierStateMachine).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.remote.object_format import Part, read_epochs_bytes
from kbroker.remote.segment_objects import SegmentObject
from kbroker.remote.store_errors import StoreError
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Shared
from kbroker.tiers.tiered_partition import object_name


class EarlierState(NamedTuple):
    """What a log knows about the records before `end_offset`, which are in remote storage."""

    end_offset: int
    epochs: Sequence[tuple[int, int]]
    """A pair (leader epoch, first offset) for each leader epoch."""
    producers: bytes
    """The content of the producers' snapshot at `end_offset`."""


async def read_earlier_state(shared: Shared, owner: Owner, epoch: int, offset: int) -> EarlierState:
    """Return the state at the end of the remote segment that has an offset in a leader epoch.

    Raises ApiError: KAFKA_STORAGE_ERROR if this broker does not know such a segment yet, or if the store fails.
    """
    segment = shared.metadata.segments(owner).find(epoch, offset)
    if segment is None:
        text = f"no remote segment with offset {offset} of leader epoch {epoch} is known"
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, text)
    name, deadline_s = object_name(shared, owner, segment), shared.deadline_s
    try:
        stored = await SegmentObject.open(shared.store, name, segment.id, footer=segment.custom, deadline_s=deadline_s)
        epochs = read_epochs_bytes(await stored.whole(Part.LEADER_EPOCHS, deadline_s=deadline_s))
        producers = await stored.whole(Part.PRODUCER_SNAPSHOT, deadline_s=deadline_s)
    except StoreError as error:
        shared.counts.read_errors += 1
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    if not producers:  # a log with very many producers takes no snapshot at some segments
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} has no snapshot of the producers; a later segment may")
    return EarlierState(segment.end_offset + 1, epochs, producers)

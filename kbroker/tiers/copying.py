"""The copy of one closed segment to remote storage: announced, sent, and then readable.

Owns the order of the steps, so that a crash or a failure at any step leaves either a readable copy or a copy that is
known to be garbage. Each try has its own id and its own object. Never chooses what to copy (tiered_partition.py).

    COPY_SEGMENT_STARTED in the log -> the object is whole in the store -> COPY_SEGMENT_FINISHED in the log
"""

from __future__ import annotations

import os
import uuid
from typing import Final

from kbroker.failpoints import passed
from kbroker.log.files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_name
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import encode_aborted
from kbroker.long_work import each, in_slices
from kbroker.remote.object_format import ObjectName, Part, epochs_bytes
from kbroker.remote.segment import RemoteSegment, SegmentState
from kbroker.remote.segment_objects import FilePart, Parts, write_segment
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Shared

_SNAPSHOT_SUFFIX: Final = ".snapshot"
_LEAST_RATE: Final = 1 << 20
"""The minimum rate of a copy in bytes per second.

A copy's deadline is that of a small call, plus the copy's time at this rate.
"""


async def copy_segment(shared: Shared, owner: Owner, log: PartitionLog, segment: Segment, end: int) -> bool:
    """Copy a closed segment that ends before the offset `end`; return whether the copy can be read.

    Raises StoreError, OSError and ApiError. After an error the sent data remain, as a segment whose copy has started.
    """
    aborted = await in_slices(_aborted_in(log, segment.base_offset, end))
    described = describe(shared.broker_id, log, segment, end, shared.clock.now_ms(), has_aborted=bool(aborted))
    if not await shared.metadata.decide(owner, lambda shard, _now: shard.begin_copy(owner, described)):
        return False
    # Without this sync, a loss of power could leave an object that no record names.
    await shared.sync_metadata(shared.metadata.place(owner))
    passed("tiers.announced")
    name = ObjectName(owner.topic_id, owner.partition, segment.base_offset, described.id).text(shared.prefix)
    deadline_s = shared.deadline_s + segment.size / _LEAST_RATE
    parts = parts_of(log, segment, end, aborted)
    layout = await write_segment(shared.store, name, described.id, parts, deadline_s=deadline_s)
    passed("tiers.sent")
    done = await shared.metadata.decide(
        owner,
        lambda shard, now: shard.advance(
            owner, described, SegmentState.COPY_SEGMENT_FINISHED, now, custom=layout.footer()
        ),
    )
    passed("tiers.copied")
    if not done:  # the topic is being deleted, or a new leader has given up this copy
        await shared.store.delete(name, deadline_s=shared.deadline_s)
        return False
    # Before the segment may be deleted from the disk, the record about its copy must survive a loss of power.
    await shared.sync_metadata(shared.metadata.place(owner))
    return True


def describe(
    broker_id: int, log: PartitionLog, segment: Segment, end: int, now_ms: int, *, has_aborted: bool
) -> RemoteSegment:
    """Return the description of a new copy of a segment. Raises OSError."""
    entries = log.proven_epochs().entries
    following = [start for _, start in entries[1:]]
    inside = [
        (epoch, max(start, segment.base_offset))
        for (epoch, start), after in zip(entries, [*following, end], strict=True)
        if start < end and after > segment.base_offset
    ]
    return RemoteSegment(
        id=uuid.uuid4().bytes,
        start_offset=segment.base_offset,
        end_offset=end - 1,
        max_timestamp_ms=segment.written_ms(),
        event_timestamp_ms=now_ms,
        broker_id=broker_id,
        size=segment.size,
        epochs=tuple(inside),
        no_aborted_transactions=not has_aborted,
    )


async def _aborted_in(log: PartitionLog, start: int, end: int) -> bytes:
    """Return the transaction index of the records in [start, end). Raises OSError."""
    found = await log.aborted_entries(start, end)
    return b"".join(await each(found, lambda entry: encode_aborted((entry,))))


def parts_of(log: PartitionLog, segment: Segment, end: int, aborted: bytes) -> Parts:
    """Return the parts of a closed segment's object. Files that only make reads faster may be missing. Raises OSError.

    The transaction index `aborted` has all aborted transactions with records in the segment. Their markers may be in
    later segments. So a reader needs no other object.
    """
    epochs = [entry for entry in log.leader_epochs.entries if entry[1] < end]
    parts: dict[Part, FilePart | bytes] = {
        Part.LOG: FilePart(segment.path(), segment.size),
        Part.LEADER_EPOCHS: epochs_bytes(epochs),
        Part.TRANSACTION_INDEX: aborted,
    }
    for part, path in (
        (Part.OFFSET_INDEX, segment.path(INDEX_SUFFIX)),
        (Part.TIME_INDEX, segment.path(TIME_INDEX_SUFFIX)),
        (Part.PRODUCER_SNAPSHOT, offset_name(log.directory, end, _SNAPSHOT_SUFFIX)),
    ):
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            continue
        if size:
            parts[part] = FilePart(path, size)
    return parts

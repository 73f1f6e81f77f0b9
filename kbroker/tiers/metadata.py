"""The records about remote segments: the state that they determine, and the decisions about the next record.

Owns the rules for the next state of a segment, and of a partition whose topic was deleted. A record with an illegal
transition has no effect. So all readers of the records agree, although several brokers may write at the same time. For
example, an abandoned copy cannot become readable. Pure: followed_metadata.py reads and writes the records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.protocol.messages.remote_log_records import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemotePartitionDeleteMetadataRecord,
)
from kbroker.remote.metadata_records import (
    MetadataRecord,
    decode_record,
    delete_record,
    segment_of,
    segment_record,
    update_record,
)
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState, deletion_may_become, may_become
from kbroker.remote.segments import RemoteSegments

PARTITIONS: Final = 50
"""The default of Kafka's TopicBasedRemoteLogMetadataManager (`remote.log.metadata.topic.num.partitions`)."""


class Owner(NamedTuple):
    """The partition of a user's topic to which segments belong."""

    topic: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Key = tuple[bytes, int]
"""A topic id and a partition."""


class MetadataShard:
    """The remote segments of the partitions whose records are in one partition of `__remote_log_metadata`."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.partitions: dict[Key, RemoteSegments] = {}
        self.names: dict[Key, str] = {}
        """The names of the topics at the time of their first records."""

    def replay(self, value: bytes) -> bool:
        """Apply a record; return whether its transition was legal. Raises Malformed, and ValueError."""
        record = decode_record(value)
        if isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
            return False  # these are only in the snapshot files of Kafka's brokers
        if isinstance(record, RemotePartitionDeleteMetadataRecord):
            entry = record.topic_id_partition
            segments = self._of((entry.id, entry.partition), entry.name)
            is_legal = segments.delete_partition(DeleteState(record.remote_partition_delete_state))
            if segments.deletion in (None, DeleteState.DELETE_PARTITION_FINISHED):
                self._forget((entry.id, entry.partition))
            return is_legal
        entry = record.remote_log_segment_id.topic_id_partition
        segments = self._of((entry.id, entry.partition), entry.name)
        if isinstance(record, RemoteLogSegmentMetadataRecord):
            return segments.add(segment_of(record))
        return segments.update(
            record.remote_log_segment_id.id,
            SegmentState(record.remote_log_segment_state),
            record.broker_id,
            record.event_timestamp_ms,
            record.custom_metadata,
        )

    def _of(self, key: Key, name: str) -> RemoteSegments:
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = RemoteSegments()
            self.names[key] = name
        return found

    def _forget(self, key: Key) -> None:
        if self.partitions[key].deletion is not None or not len(self.partitions[key]):
            del self.partitions[key], self.names[key]

    # -- decisions: the next record, or None if the transition is not legal

    def begin_copy(self, owner: Owner, segment: RemoteSegment) -> MetadataRecord | None:
        """Announce the copy of a segment."""
        known = self.partitions.get(owner[1:])
        if known is not None and (known.deletion is not None or known.get(segment.id) is not None):
            return None
        return segment_record(*owner, segment)

    def advance(
        self, owner: Owner, segment: RemoteSegment, state: SegmentState, now_ms: int, custom: bytes | None = None
    ) -> MetadataRecord | None:
        """Give a segment its next state, if it still has the state that the caller knows."""
        known = self.partitions.get(owner[1:])
        present = None if known is None else known.get(segment.id)
        if present is None or present.state is not segment.state:
            return None
        if segment.state is state or not may_become(segment.state, state):
            return None
        if known is not None and known.deletion is not None and state is SegmentState.COPY_SEGMENT_FINISHED:
            return None
        kept = segment.custom if custom is None else custom
        return update_record(*owner, segment.updated(state, self._broker_id, now_ms, kept))

    def advance_deletion(self, owner: Owner, state: DeleteState, now_ms: int) -> MetadataRecord | None:
        """Give the deletion of a partition its next state."""
        known = self.partitions.get(owner[1:])
        if known is None or known.deletion is state or not deletion_may_become(known.deletion, state):
            return None
        return delete_record(*owner, state, self._broker_id, now_ms)

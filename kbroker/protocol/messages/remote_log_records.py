"""The records of `__remote_log_metadata`, about the segments of partitions in remote storage (KIP-405).

They have no keys. A value begins with three varints: see kbroker/remote/metadata_records.py.
"""

from kbroker.protocol.schema import Uuid, f, i8, i32, i64, message, struct


@struct
class TopicIdPartitionEntry:
    name: str = f()
    id: Uuid = f()
    partition: i32 = f()


@struct
class RemoteLogSegmentIdEntry:
    topic_id_partition: TopicIdPartitionEntry = f()
    id: Uuid = f()


@struct
class SegmentLeaderEpochEntry:
    leader_epoch: i32 = f()
    offset: i64 = f()


@message(key=0, versions="0", flexible="0+")
class RemoteLogSegmentMetadataRecord:
    """A segment whose copy to remote storage starts."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = f()
    start_offset: i64 = f()
    end_offset: i64 = f()
    broker_id: i32 = f()
    max_timestamp_ms: i64 = f()
    event_timestamp_ms: i64 = f()
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = f()
    segment_size_in_bytes: i32 = f()
    custom_metadata: bytes | None = f(nullable="0+", default=None)
    remote_log_segment_state: i8 = f()
    txn_index_empty: bool = f(tag=0)


@message(key=1, versions="0", flexible="0+")
class RemoteLogSegmentMetadataUpdateRecord:
    """A later state of a segment."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = f()
    broker_id: i32 = f()
    event_timestamp_ms: i64 = f()
    custom_metadata: bytes | None = f(nullable="0+", default=None)
    remote_log_segment_state: i8 = f()


@message(key=2, versions="0", flexible="0+")
class RemotePartitionDeleteMetadataRecord:
    """The deletion of a partition, which includes all its segments in remote storage."""

    topic_id_partition: TopicIdPartitionEntry = f()
    broker_id: i32 = f()
    event_timestamp_ms: i64 = f()
    remote_partition_delete_state: i8 = f()


@message(key=3, versions="0", flexible="0+")
class RemoteLogSegmentMetadataSnapshotRecord:
    """A segment in a snapshot of one partition. The record does not name the partition, because the snapshot does."""

    segment_id: Uuid = f()
    start_offset: i64 = f()
    end_offset: i64 = f()
    broker_id: i32 = f()
    max_timestamp_ms: i64 = f()
    event_timestamp_ms: i64 = f()
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = f()
    segment_size_in_bytes: i32 = f()
    custom_metadata: bytes | None = f(nullable="0+", default=None)
    remote_log_segment_state: i8 = f()
    txn_index_empty: bool = f(tag=0)

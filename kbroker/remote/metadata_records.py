"""The bytes of the records of `__remote_log_metadata`, and the choice of a record's partition.

A value is three unsigned varints (frame version 1, the record's type, the version of its message), then the message.
Owns this form and Kafka's checks of a record's content. Never knows the effects of a record: segments.py does.

Sources: RemoteLogMetadataSerde, AbstractApiMessageSerde and RemoteLogMetadataTopicPartitioner of Apache Kafka 4.4.
"""

from __future__ import annotations

import struct
from typing import Any, Final, cast

from kbroker.protocol.compiler import encoder, exact_decoder
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.remote_log_records import (
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from kbroker.protocol.partitioner import partition_of
from kbroker.protocol.wire import read_uvarint, write_uvarint
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState

MetadataRecord = (
    RemoteLogSegmentMetadataRecord
    | RemoteLogSegmentMetadataUpdateRecord
    | RemotePartitionDeleteMetadataRecord
    | RemoteLogSegmentMetadataSnapshotRecord
)

_FRAME_VERSION: Final = 1
_VERSION: Final = 0
_MOST: Final = 32767
_CLASSES: Final[dict[int, type[Any]]] = {
    cast("Any", cls).KEY: cls
    for cls in (
        RemoteLogSegmentMetadataRecord,
        RemoteLogSegmentMetadataUpdateRecord,
        RemotePartitionDeleteMetadataRecord,
        RemoteLogSegmentMetadataSnapshotRecord,
    )
}


def encode_record(record: MetadataRecord) -> bytes:
    """Return the value of a record of `__remote_log_metadata`. Raises ValueError for illegal fields."""
    cls = type(record)
    out = bytearray()
    for number in (_FRAME_VERSION, cast("Any", cls).KEY, _VERSION):
        write_uvarint(out, number)
    try:
        encoder(cls, _VERSION)(record, out, [])
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"{cls.__name__} has a field that its type cannot hold: {error}") from error
    return bytes(out)


def decode_record(value: bytes) -> MetadataRecord:
    """Return the record in a value of `__remote_log_metadata`.

    Raises Malformed for a value that Kafka would not read.
    """
    at = 0
    numbers = []
    for what in ("frame version", "type", "version"):
        try:
            number, at = read_uvarint(value, at)
        except IndexError as error:
            raise Malformed(f"a record of remote log metadata ends in its {what}") from error
        if number > _MOST:
            raise Malformed(f"a record of remote log metadata has {what} {number}, which is too large")
        numbers.append(number)
    frame, kind, version = numbers
    if frame != _FRAME_VERSION:
        raise Malformed(f"a record of remote log metadata has frame version {frame}, not {_FRAME_VERSION}")
    if kind not in _CLASSES:
        raise Malformed(f"a record of remote log metadata has unknown type {kind}")
    cls = _CLASSES[kind]
    if version != _VERSION:
        raise Malformed(f"{cls.__name__} has unknown version {version}")
    record: MetadataRecord = exact_decoder(cls, version)(memoryview(value)[at:])
    _check(record)
    return record


def _check(record: MetadataRecord) -> None:
    """Raise Malformed for a record that the constructors of Kafka's classes refuse."""
    name = type(record).__name__
    if isinstance(record, RemotePartitionDeleteMetadataRecord):
        if record.remote_partition_delete_state not in tuple(DeleteState):
            raise Malformed(f"{name} has unknown state {record.remote_partition_delete_state}")
        return
    if record.remote_log_segment_state not in tuple(SegmentState):
        raise Malformed(f"{name} has unknown state {record.remote_log_segment_state}")
    if isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
        return
    if not record.segment_leader_epochs:
        raise Malformed(f"{name} has no leader epochs")
    if isinstance(record, RemoteLogSegmentMetadataRecord) and not 0 <= record.start_offset <= record.end_offset:
        raise Malformed(f"{name} has offsets {record.start_offset} to {record.end_offset}")


def segment_of(record: RemoteLogSegmentMetadataRecord | RemoteLogSegmentMetadataSnapshotRecord) -> RemoteSegment:
    """Return the segment that a record describes. The last of two entries for a leader epoch applies, as in Kafka."""
    epochs = {each.leader_epoch: each.offset for each in record.segment_leader_epochs}
    if isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
        segment_id = record.segment_id
    else:
        segment_id = record.remote_log_segment_id.id
    return RemoteSegment(
        id=segment_id,
        start_offset=record.start_offset,
        end_offset=record.end_offset,
        max_timestamp_ms=record.max_timestamp_ms,
        event_timestamp_ms=record.event_timestamp_ms,
        broker_id=record.broker_id,
        size=record.segment_size_in_bytes,
        epochs=tuple(sorted(epochs.items())),
        state=SegmentState(record.remote_log_segment_state),
        custom=record.custom_metadata,
        no_aborted_transactions=record.txn_index_empty,
    )


def segment_record(
    topic: str, topic_id: bytes, partition: int, segment: RemoteSegment
) -> RemoteLogSegmentMetadataRecord:
    """Return the record that describes a segment of a partition: the first record about the segment."""
    return RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=segment_id_entry(topic, topic_id, partition, segment.id), **_described(segment)
    )


def snapshot_record(segment: RemoteSegment) -> RemoteLogSegmentMetadataSnapshotRecord:
    """Return the record of a segment in a snapshot of its partition."""
    return RemoteLogSegmentMetadataSnapshotRecord(segment_id=segment.id, **_described(segment))


def update_record(
    topic: str, topic_id: bytes, partition: int, segment: RemoteSegment
) -> RemoteLogSegmentMetadataUpdateRecord:
    """Return the record of the state that a segment has reached."""
    return RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=segment_id_entry(topic, topic_id, partition, segment.id),
        broker_id=segment.broker_id,
        event_timestamp_ms=segment.event_timestamp_ms,
        custom_metadata=segment.custom,
        remote_log_segment_state=segment.state,
    )


def delete_record(
    topic: str, topic_id: bytes, partition: int, state: DeleteState, broker_id: int, event_timestamp_ms: int
) -> RemotePartitionDeleteMetadataRecord:
    """Return the record of the state that the deletion of a partition has reached."""
    return RemotePartitionDeleteMetadataRecord(
        topic_id_partition=TopicIdPartitionEntry(name=topic, id=topic_id, partition=partition),
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp_ms,
        remote_partition_delete_state=state,
    )


def segment_id_entry(topic: str, topic_id: bytes, partition: int, segment_id: bytes) -> RemoteLogSegmentIdEntry:
    """Return the ids of a segment and of its partition, in the form of the records."""
    owner = TopicIdPartitionEntry(name=topic, id=topic_id, partition=partition)
    return RemoteLogSegmentIdEntry(topic_id_partition=owner, id=segment_id)


def _described(segment: RemoteSegment) -> dict[str, Any]:
    return {
        "start_offset": segment.start_offset,
        "end_offset": segment.end_offset,
        "broker_id": segment.broker_id,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "event_timestamp_ms": segment.event_timestamp_ms,
        "segment_leader_epochs": [SegmentLeaderEpochEntry(leader_epoch=e, offset=at) for e, at in segment.epochs],
        "segment_size_in_bytes": segment.size,
        "custom_metadata": segment.custom,
        "remote_log_segment_state": segment.state,
        "txn_index_empty": segment.no_aborted_transactions,
    }


def metadata_partition(topic_id: bytes, partition: int, count: int) -> int:
    """Return the partition of `__remote_log_metadata` for all records about a partition of a topic.

    It is one of `count` partitions, chosen by murmur2 of a hash of the topic's id and the partition's number.
    """
    most, least = (_long_hash(topic_id[8 * at : 8 * at + 8]) for at in (0, 1))
    value = 1
    for each in (least, most, partition):
        value = (31 * value + each) & 0xFFFFFFFF
    return partition_of(value.to_bytes(4, "big"), count)


def _long_hash(raw: bytes) -> int:
    """Return Java's Long.hashCode of 8 bytes, without a sign."""
    value = int.from_bytes(raw, "big")
    return (value ^ value >> 32) & 0xFFFFFFFF

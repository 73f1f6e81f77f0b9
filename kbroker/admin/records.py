"""Records of partitions: reading up to the current end, writing a record, and deleting the records before an offset.

Owns the offsets at which a read starts and ends. If a record is written without a partition, its key selects the
partition, as in Kafka's clients. A missing topic is never created. Never prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from kafka.errors import UnknownTopicOrPartitionError
from kafka.serializer import Serializer
from kafka.structs import TopicPartition

from kbroker.admin.connection import Connection, patiently
from kbroker.admin.did_you_mean import missing_topic
from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)


def named(partition: TopicPartition) -> str:
    """Return the name of a partition for people."""
    return f"{partition.topic}-{partition.partition}"


def known_partitions(consumer: Any, topic: str) -> set[int]:
    """Return the numbers of a topic's partitions. Raises AdminError if the topic does not exist."""
    known: set[int] = set()
    names: list[str] = []
    # kafka-python raises this error while it updates its metadata of only this topic.
    with suppress(UnknownTopicOrPartitionError):
        known = set(consumer.partitions_for_topic(topic))
        names = [] if known else sorted(consumer.topics())
    if not known:
        raise AdminError(missing_topic(topic, names))
    return known


def position(consumer: Any, partition: TopicPartition) -> int:
    """Return the next offset of a partition, or -1 while the offset is unknown."""
    offset = consumer.position(partition, timeout_ms=1_000)
    return -1 if offset is None else int(offset)


def forget_fetched(consumer: Any) -> None:
    """Let a consumer fetch again after a batch that it could not read.

    Without this, kafka-python 3.0 would keep the broken batch as its next batch, and a poll would never return.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - the only public method for this changes the assignment
    if fetcher._next_partition_records is not None:  # noqa: SLF001
        fetcher._next_partition_records.drain()  # noqa: SLF001


def finish_join(consumer: Any) -> None:
    """Let a group's member finish a join that was still running when a poll ended.

    The group's leader joins again when the partitions of a topic have changed. If a poll ends during that join,
    kafka-python 3.0 may stop waiting for the result. The member then neither fetches nor sends heartbeats.
    """
    coordinator = consumer._coordinator  # noqa: SLF001 - nothing public shows or ends this state
    if coordinator.rejoining and not coordinator.need_rejoin():
        coordinator.request_rejoin()


_TIMEOUT_MS: Final = 30_000
TO_THE_END: Final = -1
"""The offset that makes DeleteRecords delete everything up to the high watermark."""


def assign(
    consumer: Any, topics: Sequence[str], wanted: Sequence[int]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Assign the wanted partitions of topics, or all; return their current first offsets and end offsets."""
    assigned = []
    for topic in topics:
        known = known_partitions(consumer, topic)
        for partition in wanted:
            if partition not in known:
                raise AdminError(f"topic {topic} has no partition {partition}")
        assigned += [TopicPartition(topic, partition) for partition in wanted or sorted(known)]
    consumer.assign(assigned)
    try:
        first = patiently(lambda: consumer.beginning_offsets(assigned))
        ends = patiently(lambda: consumer.end_offsets(assigned))
    except KeyError as error:  # kafka-python's error for a partition without a leader
        raise AdminError(f"{named(error.args[0])} has no leader") from None
    return first, dict(ends)


def at_time(consumer: Any, ends: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of each partition's first record at or after a time.

    If all records are older, it is the end offset.
    """
    found = consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {each: ends[each] if at is None else at.offset for each, at in found.items()}


def first_offsets_at(connection: Connection, wanted: Mapping[Key, int], time_ms: int) -> dict[Key, int]:
    """Return the offset of each partition's first record at or after a time, or TO_THE_END if all records are older."""
    consumer = connection.consumer(group_id=None)
    try:
        found = consumer.offsets_for_times({TopicPartition(*key): time_ms for key in wanted})
    finally:
        consumer.close(autocommit=False, timeout_ms=0)
    return {(each.topic, each.partition): TO_THE_END if at is None else at.offset for each, at in found.items()}


def delete_records(
    admin: Any, wanted: Mapping[Key, int], led: Mapping[Key, int]
) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Delete records before offsets by requests to the leaders; return the new log start offsets, and the failures."""
    rows, failures = [], []
    for broker in sorted({led[key] for key in wanted}):
        topics: dict[str, list[DeleteRecordsPartition]] = {}
        for (name, index), offset in wanted.items():
            if led[name, index] == broker:
                topics.setdefault(name, []).append(DeleteRecordsPartition(index, offset))
        request = DeleteRecordsRequest([DeleteRecordsTopic(*each) for each in topics.items()], _TIMEOUT_MS)
        answer = ask_broker(admin, broker, request, DeleteRecordsResponse)
        for topic in answer.topics:
            for each in topic.partitions:
                error = code_error(each.error_code)
                if error is None:
                    rows.append((topic.name, each.partition_index, each.low_watermark))
                else:
                    failures.append(f"{topic.name}-{each.partition_index}: {error_text(error)}")
    return rows, failures


_PATIENCE_S: Final = 10.0


class AsItIs(Serializer):  # type: ignore[misc]
    """A serializer that changes nothing.

    A client without a serializer refuses records whose key and value are None.
    """

    def serialize(self, topic: str, headers: object, data: tuple[bytes | None]) -> bytes | None:  # noqa: ARG002
        return data[0]


def write_record(
    connection: Connection,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
    partition: int | None = None,
) -> tuple[int, int]:
    """Write a record with acks from all in-sync replicas. Return its partition and offset. Raises AdminError."""
    producer: Any = connection.producer(acks=-1, linger_ms=0, value_serializer=AsItIs(), max_block_ms=5_000)
    try:
        known = producer.partitions_for(topic)
        if partition is not None and partition not in known:
            raise AdminError(f"topic {topic} has no partition {partition}")
        metadata = producer.send(topic, (value,), key, list(headers), partition).get(_PATIENCE_S)
    finally:
        producer.close(timeout=1)
    return int(metadata.partition), int(metadata.offset)

"""Builds the records and the answer of an offset commit in pieces, before the group decides about the commit.

Owns the records of a commit and the limit on their bytes. Never checks the member: offset_commit.py does that in one
step, so that a commit applies to all of its partitions or none.
"""

from __future__ import annotations

from kbroker.coordination.encoding import EncodedRecords
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.records.offsets import OFFSET_COMMIT, offset_commit, read_offset_value
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kbroker.protocol.records import wrap

NO_BOUND = 1 << 40
FEW_RECORDS = 100
"""The number of records that take about a millisecond to encode and apply. A longer list is encoded ahead."""
_LEAST_BYTES = 41
"""The minimum size of an offset's record in bytes, without the topic's name, the metadata, and the group's id."""


class Commit:
    """The records of a commit: in `records` if they are few, otherwise in `encoded`.

    A `too_large` commit has no records.
    """

    __slots__ = (
        "_left",
        "_limit",
        "encoded",
        "group_id",
        "now_ms",
        "places",
        "records",
        "reply",
        "too_large",
        "values",
    )

    def __init__(self, group_id: str, now_ms: int, most_bytes: int, metadata_limit: int) -> None:
        self.group_id = group_id
        self.now_ms = now_ms
        self.reply: OffsetCommitResponse | TxnOffsetCommitResponse | None = None
        self.places: list[tuple[str, bytes, int]] = []  # topic, its id, partition
        self.records: list[CoordinatorRecord] = []
        self.encoded: EncodedRecords | None = None
        self.values: list[OffsetCommitValue] = []  # the values of `encoded`, as a read of the log would return them
        self._left = most_bytes
        self._limit = metadata_limit
        self.too_large = most_bytes <= 0

    def refuses(self, asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition) -> ErrorCode:
        """Return the error if a partition's metadata is too long, or NONE. As in Java, UTF-16 units are counted."""
        metadata = asked.committed_metadata or ""
        if len(metadata) * 2 > self._limit and len(metadata) + sum(each > "\uffff" for each in metadata) > self._limit:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def fits(self, topic: str, asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition) -> bool:
        """Count a partition's bytes; return whether they fit. A commit that exceeds the limit writes nothing at all."""
        self._left -= _LEAST_BYTES + len(topic) + len(asked.committed_metadata or "")
        if self._left < 0:
            self.too_large = True
            self.places, self.records, self.encoded, self.values = [], [], None, []
        return not self.too_large

    def add(self, topic: str, topic_id: bytes, index: int, value: OffsetCommitValue) -> None:
        """Add the record of an offset."""
        self.places.append((topic, topic_id, index))
        record = offset_commit(self.group_id, topic, index, value)
        if self.encoded is None and len(self.records) < FEW_RECORDS:
            self.records.append(record)
            return
        if self.encoded is None:
            self.encoded = EncodedRecords()
            for each in self.records:
                self._encode(self.encoded, each)
            self.records = []
        self._encode(self.encoded, record)

    def _encode(self, encoded: EncodedRecords, record: CoordinatorRecord) -> None:
        encoded.add(record)
        self.values.append(read_offset_value(OFFSET_COMMIT, record.value or b""))


async def build_commit(request: OffsetCommitRequest, now_ms: int, metadata_limit: int, most_bytes: int) -> Commit:
    """Build the records of an OffsetCommit of existing partitions. Raises ApiError if a record cannot be encoded.

    A batch of more than `most_bytes` is not built, because it would be refused.
    """
    commit = Commit(request.group_id, now_ms, most_bytes, metadata_limit)
    expire = -1 if request.retention_time_ms == -1 else wrap(now_ms + request.retention_time_ms)
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            code = commit.refuses(asked)
            if code is ErrorCode.NONE:
                if not commit.fits(topic.name, asked):
                    return commit
                value = _value(asked, now_ms)
                value.expire_timestamp, value.topic_id = expire, topic.topic_id
                commit.add(topic.name, topic.topic_id, asked.partition_index, value)
            partitions.append(OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code))
            await turn
        topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    commit.reply = OffsetCommitResponse(topics=topics)
    return commit


async def build_commit_in_transaction(
    request: TxnOffsetCommitRequest, now_ms: int, metadata_limit: int, most_bytes: int
) -> Commit:
    """Build the records of a TxnOffsetCommit of existing partitions, as `build_commit` does."""
    commit = Commit(request.group_id, now_ms, most_bytes, metadata_limit)
    topics = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            index, code = asked.partition_index, commit.refuses(asked)
            if code is ErrorCode.NONE:
                if not commit.fits(topic.name, asked):
                    return commit
                value = _value(asked, now_ms)
                value.topic_id = topic.topic_id
                commit.add(topic.name, topic.topic_id, index, value)
            partitions.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=code))
            await turn
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
    commit.reply = TxnOffsetCommitResponse(topics=topics)
    return commit


def _value(asked: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition, now_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=asked.committed_offset,
        leader_epoch=max(asked.committed_leader_epoch, -1),
        metadata=asked.committed_metadata or "",
        commit_timestamp=now_ms,
    )

"""The remote segments of all partitions: a coordinator's shard for each partition of `__remote_log_metadata`.

Owns the decisions about the next state of a segment or of a deleted partition, and the wait while the topic is created
or loaded. A decision that is not a legal transition is refused. So an abandoned copy cannot become readable.
Never talks to a store: copying.py and tiered_partition.py do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from kbroker.clock import Clock
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.coordination.service import CoordinatorService
from kbroker.coordination.shard import CoordinatorRecord, Outcome, Writer
from kbroker.long_work import awaited
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.remote_log_records import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from kbroker.protocol.wire import uuid_text
from kbroker.remote.metadata_records import (
    MetadataRecord,
    decode_record,
    delete_record,
    encode_record,
    metadata_partition,
    segment_of,
    segment_record,
    update_record,
)
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState, deletion_may_become, may_become
from kbroker.remote.segments import RemoteSegments

PARTITIONS: Final = 50
"""The default of Kafka's TopicBasedRemoteLogMetadataManager (`remote.log.metadata.topic.num.partitions`)."""
_WRITE_TIMEOUT_MS: Final = 5_000
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.05
_PASSING: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class Owner(NamedTuple):
    """The partition of a user's topic to which segments belong."""

    topic: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class _Failed(NamedTuple):
    """The runtime could not answer."""

    code: ErrorCode
    message: str | None


Key = tuple[bytes, int]
"""A topic id and a partition."""


class MetadataShard:
    """The remote segments of the partitions whose records are in one partition of the topic."""

    steps_over_unreadable = True

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self.partitions: dict[Key, RemoteSegments] = {}
        self.names: dict[Key, str] = {}
        """The names of the topics at the time of their first records."""

    # -- what the runtime calls

    def replay(self, _offset: int, _producer_id: int, _key: bytes, value: bytes | None) -> None:
        if value is not None:
            self._apply(decode_record(value))

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Ignore a transaction's end: the topic has no transactions."""

    def on_loaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def on_unloaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def on_timer(self, key: Hashable, _now_ms: int) -> Outcome:
        raise ValueError(f"no timer {key!r}")

    def _apply(self, record: MetadataRecord) -> None:
        if isinstance(record, RemoteLogSegmentMetadataSnapshotRecord):
            return  # these are only in the snapshot files of Kafka's brokers
        if isinstance(record, RemotePartitionDeleteMetadataRecord):
            entry = record.topic_id_partition
            segments = self._of((entry.id, entry.partition), entry.name)
            segments.delete_partition(DeleteState(record.remote_partition_delete_state))
            if segments.deletion is DeleteState.DELETE_PARTITION_FINISHED:
                del self.partitions[entry.id, entry.partition], self.names[entry.id, entry.partition]
            return
        entry = record.remote_log_segment_id.topic_id_partition
        segments = self._of((entry.id, entry.partition), entry.name)
        if isinstance(record, RemoteLogSegmentMetadataRecord):
            segments.add(segment_of(record))
        elif isinstance(record, RemoteLogSegmentMetadataUpdateRecord):
            segments.update(
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

    # -- decisions; the reply is whether the transition is legal

    def begin_copy(self, owner: Owner, segment: RemoteSegment) -> Outcome:
        """Announce the copy of a segment."""
        known = self.partitions.get(owner[1:])
        if known is not None and (known.deletion is not None or known.get(segment.id) is not None):
            return Outcome(reply=False)
        return _writing(owner, segment_record(*owner, segment))

    def advance(
        self, owner: Owner, segment_id: bytes, state: SegmentState, now_ms: int, custom: bytes | None = None
    ) -> Outcome:
        """Give a segment its next state."""
        known = self.partitions.get(owner[1:])
        segment = None if known is None else known.get(segment_id)
        if segment is None or segment.state is state or not may_become(segment.state, state):
            return Outcome(reply=False)
        if known is not None and known.deletion is not None and state is SegmentState.COPY_SEGMENT_FINISHED:
            return Outcome(reply=False)
        kept = segment.custom if custom is None else custom
        return _writing(owner, update_record(*owner, segment.updated(state, self._broker_id, now_ms, kept)))

    def advance_deletion(self, owner: Owner, state: DeleteState, now_ms: int) -> Outcome:
        """Give the deletion of a partition its next state."""
        known = self.partitions.get(owner[1:])
        if known is None or known.deletion is state or not deletion_may_become(known.deletion, state):
            return Outcome(reply=False)
        return _writing(owner, delete_record(*owner, state, self._broker_id, now_ms))


def _writing(owner: Owner, record: MetadataRecord) -> Outcome:
    key = f"{uuid_text(owner.topic_id)}-{owner.partition}".encode()
    return Outcome(reply=True, records=[CoordinatorRecord(key, encode_record(record))])


class TierMetadata(CoordinatorService[MetadataShard]):
    """The remote segments of the partitions whose records this broker keeps."""

    def __init__(self, broker_id: int, writer: Writer, clock: Clock, partitions: int = PARTITIONS) -> None:
        self._clock = clock
        super().__init__(
            REMOTE_LOG_METADATA_TOPIC,
            partitions,
            lambda _partition: MetadataShard(broker_id),
            writer,
            clock,
            _WRITE_TIMEOUT_MS,
        )

    def place(self, owner: Owner) -> int:
        """Return the partition of the metadata topic that has the records about the partition of `owner`.

        Raises ApiError if the topic does not exist.
        """
        return self._place(owner[1:])

    def _place(self, key: Key) -> int:
        count = self._writer.partition_count()
        if not count:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return metadata_partition(*key, count)

    def segments(self, owner: Owner) -> RemoteSegments:
        """Return the remote segments of a partition. Raises ApiError while the segments are not known."""
        if not self._writer.partition_count():
            return RemoteSegments()
        shard = self._runtime.shard(self._place(owner[1:]))
        found = shard.partitions.get(owner[1:])
        return RemoteSegments() if found is None else found

    def owners(self) -> list[Owner]:
        """Return the partitions with loaded records."""
        return [Owner(shard.names[key], *key) for shard in self.loaded() for key in shard.partitions]

    async def decide(self, owner: Owner, decision: Callable[[MetadataShard, int], Outcome]) -> bool:
        """Write a decision, and return whether it was legal. Raises ApiError if the write did not succeed in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        while True:
            self.ensure_topic()
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if self._writer.partition_count():
                reply: Any = await awaited(self._runtime.run(self._place(owner[1:]), decision, _Failed))
                if not isinstance(reply, _Failed):
                    return bool(reply)
                code = reply.code
            if code not in _PASSING or self._closed or loop.time() >= until:
                raise ApiError(code, f"{REMOTE_LOG_METADATA_TOPIC} takes no record: {code.name}")
            await asyncio.sleep(_PAUSE_S)

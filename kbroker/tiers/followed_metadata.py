"""The remote segments of all partitions, as this broker knows them: copies of `__remote_log_metadata`, and its writes.

Owns the copies of the topic's partitions, and the tasks that read them, one for each leader. A partition is read from
the first question about it on. A copy answers once it has reached the end that the leader reported when the reading
began. Owns also the writes: a decision (metadata.py) becomes a record with acks=all. The decision took effect if the
copy then finds the record's transition legal, because earlier records of other brokers can contradict it. Never
decides anything, and never talks to a store. (Apache Kafka: TopicBasedRemoteLogMetadataManager, ConsumerTask)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.clock import Clock
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.long_work import in_slices, turn
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import build_batch, compute_crc, iter_batches, stream_records
from kbroker.protocol.wire import uuid_text
from kbroker.remote.metadata_records import MetadataRecord, encode_record, metadata_partition
from kbroker.remote.segments import RemoteSegments, UnknownSegmentError
from kbroker.tiers.metadata import MetadataShard, Owner

log = logging.getLogger(__name__)

Decision = Callable[[MetadataShard, int], MetadataRecord | None]
"""A function of a shard and the time in ms that returns the record to write. None: the transition is not legal."""

_PATIENCE_S: Final = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_WAIT_MS: Final = 500
"""The milliseconds for which a read waits at the end of the partitions."""
_MOST_UNPACKED: Final = 128 << 20
_NOT_WRITTEN: Final = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)
"""The errors after which a record is certainly not written, and which often end soon.

NOT_LEADER_OR_FOLLOWER is not one of them: a leader that resigns returns it also for records that it has appended.
"""
MOVING: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
"""The errors of reads while a leader changes."""


class Want(NamedTuple):
    """The place from which a partition of the topic is read. `last_epoch` is the epoch of the record before it."""

    partition: int
    offset: int
    last_epoch: int


class Piece(NamedTuple):
    """The result of a read of one partition: batches, or an error."""

    partition: int
    records: memoryview = memoryview(b"")
    code: ErrorCode = ErrorCode.NONE
    is_elsewhere: bool = False
    """Whether the log was cut: it lacks the wanted offset, or has another record before this offset."""


class Source(Protocol):
    """The topic `__remote_log_metadata`. The coroutines raise ApiError and OSError."""

    def partition_count(self) -> int:
        """Return the number of partitions; 0 if the topic does not exist or is not known yet."""

    def topic_id(self) -> bytes:
        """Return the id of the topic."""

    def ensure_topic(self) -> None:
        """Create the topic if it does not exist."""

    def leader_of(self, partition: int) -> int:
        """Return the leader's broker id; -1 without a leader."""

    def leads(self, partition: int) -> bool:
        """Whether this broker leads a partition."""

    async def bounds(self, leader: int, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the start and the end of the committed records of the partitions.

        The result lacks partitions whose leader does not know the end yet.
        """

    async def read(self, leader: int, wants: Sequence[Want], wait_ms: int) -> list[Piece]:
        """Return the committed records of partitions with new records or errors; wait if there are none.

        A result may contain records before the wanted offset. It is valid until the next call for this leader.
        """

    async def write(self, partition: int, batch: memoryview) -> ErrorCode:
        """Produce a batch, and wait until all in-sync replicas have it."""


class _Copy:
    """The state of one partition of the topic after a replay of its records up to an offset."""

    __slots__ = ("goal", "last_epoch", "partition", "position", "shard", "skipped", "topic_id", "waiting")

    def __init__(self, partition: int, topic_id: bytes, broker_id: int) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.shard = MetadataShard(broker_id)
        self.position = 0
        self.last_epoch = -1
        self.goal: int | None = None
        """The offset that the copy must reach before it answers; None until the leader has returned it."""
        self.skipped = 0
        self.waiting: dict[bytes, list[asyncio.Future[bool]]] = {}
        """The writes whose record was not replayed yet, by the record's value."""

    def fail(self, code: ErrorCode) -> None:
        """End the waits for records with an error."""
        for replayed in (each for some in self.waiting.values() for each in some if not each.done()):
            replayed.set_exception(ApiError(code))
            replayed.exception()  # the writer may still wait for its write

    @property
    def is_whole(self) -> bool:
        return self.goal is not None and self.position >= self.goal


class RemoteMetadata:
    """The remote segments of the partitions about which this broker asks."""

    def __init__(self, broker_id: int, source: Source, clock: Clock) -> None:
        self._broker_id = broker_id
        self._source = source
        self._clock = clock
        self._copies: dict[int, _Copy] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    def place(self, owner: Owner) -> int:
        """Return the partition of the topic that has the records about the partition of `owner`.

        Raises ApiError if the topic does not exist.
        """
        count = self._source.partition_count()
        if not count:
            self._source.ensure_topic()
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return metadata_partition(*owner[1:], count)

    def segments(self, owner: Owner) -> RemoteSegments:
        """Return the remote segments of a partition. Raises ApiError while the segments are not known."""
        found = self._copy(self.place(owner)).shard.partitions.get(owner[1:])
        return RemoteSegments() if found is None else found

    def led(self) -> list[Owner]:
        """Return the known partitions whose records are in a partition of the topic that this broker leads.

        So one broker of a cluster deletes the segments of a deleted topic.
        """
        found = []
        for index in range(self._source.partition_count()):
            if self._source.leads(index):
                try:
                    shard = self._copy(index).shard
                except ApiError:
                    continue
                for key, segments in shard.partitions.items():
                    if len(segments) or segments.deletion is not None:
                        found.append(Owner(shard.names[key], *key))
        return found

    async def decide(self, owner: Owner, decision: Decision) -> bool:
        """Write the record of a decision, and return whether the decision took effect. Raises ApiError.

        After an error it is unknown whether the record was written.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        while True:
            try:
                return await self._decide(owner, decision, until)
            except ApiError as error:
                if error.code not in _NOT_WRITTEN or self._closed or loop.time() >= until:
                    text = f"{REMOTE_LOG_METADATA_TOPIC} takes no record: {error.code.name}"
                    raise ApiError(error.code, text) from None
            await asyncio.sleep(_FIRST_PAUSE_S)

    async def _decide(self, owner: Owner, decision: Decision, until: float) -> bool:
        copy = self._copy(self.place(owner))
        now_ms = self._clock.now_ms()
        record = decision(copy.shard, now_ms)
        if record is None:
            return False
        value = encode_record(record)
        key = f"{uuid_text(owner.topic_id)}-{owner.partition}".encode()
        batch = memoryview(bytearray(build_batch([(now_ms, key, value, ())])))
        loop = asyncio.get_running_loop()
        replayed: asyncio.Future[bool] = loop.create_future()
        copy.waiting.setdefault(value, []).append(replayed)
        try:
            async with asyncio.timeout(max(until - loop.time(), 1.0)):
                code = await self._source.write(copy.partition, batch)
                if code is not ErrorCode.NONE:
                    raise ApiError(code)
                return await replayed
        except TimeoutError:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None
        finally:
            replayed.cancel()
            if replayed in (left := copy.waiting.get(value, [])):
                left.remove(replayed)
                if not left:
                    del copy.waiting[value]

    # -- reading

    def _copy(self, index: int) -> _Copy:
        """Return the copy of a partition, and begin to read it. Raises ApiError until the copy is complete."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found = self._copies.get(index)
        if found is None or found.topic_id != self._source.topic_id():
            found = self._begin(index)
        if not found.is_whole:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return found

    def _begin(self, index: int) -> _Copy:
        before = self._copies.get(index)
        copy = self._copies[index] = _Copy(index, self._source.topic_id(), self._broker_id)
        if before is not None:
            before.fail(ErrorCode.REQUEST_TIMED_OUT)
        self.tick()
        return copy

    def tick(self) -> None:
        """Read the partitions of leaders that nobody reads yet."""
        for copy in self._copies.values():
            leader = self._source.leader_of(copy.partition)
            if leader >= 0 and leader not in self._tasks and not self._closed:
                self._tasks[leader] = asyncio.get_running_loop().create_task(self._follow(leader))

    async def _follow(self, leader: int) -> None:
        """Read the partitions of one leader, as long as it leads any."""
        trouble, pause_s = "", _FIRST_PAUSE_S
        try:
            while mine := [each for each in self._copies.values() if self._source.leader_of(each.partition) == leader]:
                try:
                    is_read = await self._read(leader, mine)
                except (ApiError, OSError, Malformed) as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        log.info("%s cannot be read from broker %d: %s", REMOTE_LOG_METADATA_TOPIC, leader, trouble)
                    is_read = False
                except Exception:
                    log.exception("%s cannot be read from broker %d", REMOTE_LOG_METADATA_TOPIC, leader)
                    is_read = False
                if not is_read:
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                else:
                    trouble, pause_s = "", _FIRST_PAUSE_S
        finally:
            del self._tasks[leader]

    async def _read(self, leader: int, copies: Sequence[_Copy]) -> bool:
        """Read once; return whether all partitions could be read."""
        unknown = {each.partition: each for each in copies if each.goal is None}
        if unknown:
            for index, (start, end) in (await self._source.bounds(leader, list(unknown))).items():
                unknown[index].position, unknown[index].goal = start, end
        known = [each for each in copies if each.goal is not None]
        wants = [Want(each.partition, each.position, each.last_epoch) for each in known]
        is_read = len(known) == len(copies)
        refused: ErrorCode | None = None
        for piece in await self._source.read(leader, wants, _WAIT_MS if is_read else 0):
            found = self._copies[piece.partition]
            if found not in known:
                continue  # it is read anew
            if piece.is_elsewhere:
                log.warning("%s-%d is read anew: it was cut", REMOTE_LOG_METADATA_TOPIC, piece.partition)
                self._begin(piece.partition)
            elif piece.code is not ErrorCode.NONE:
                is_read = False
                refused = refused if piece.code in MOVING else piece.code
            else:
                await in_slices(_replay(found, piece.records))
        if refused is not None:
            raise ApiError(refused)
        return is_read

    async def close(self) -> None:
        """Stop reading, and end all waits."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        for copy in self._copies.values():
            copy.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _replay(copy: _Copy, records: memoryview) -> None:
    """Apply new records; skip records that cannot be read."""
    for at, header in iter_batches(records):
        if header.last_offset < copy.position:
            continue
        if not header.is_control:
            try:
                if compute_crc(records[at : at + header.size]) != header.crc:
                    raise Malformed("its batch is damaged")
                await _replay_batch(copy, records[at : at + header.size])
            except Malformed as error:
                _skipped(copy, header.base_offset, error)
        copy.position = header.last_offset + 1
        copy.last_epoch = header.leader_epoch


async def _replay_batch(copy: _Copy, batch: memoryview) -> None:
    for record in stream_records(batch, max_bytes=_MOST_UNPACKED, begin=copy.position):
        if record is not None and record.value is not None:
            is_legal = False
            try:
                is_legal = copy.shard.replay(record.value)
            except (Malformed, ValueError, UnknownSegmentError) as error:
                _skipped(copy, record.offset, error)
            for replayed in copy.waiting.pop(bytes(record.value), ()):
                if not replayed.done():
                    replayed.set_result(is_legal)
        await turn


def _skipped(copy: _Copy, offset: int, error: Exception) -> None:
    copy.skipped += 1
    level = logging.WARNING if copy.skipped == 1 else logging.DEBUG
    text = "%s-%d: the record at offset %d is skipped: %s"
    log.log(level, text, REMOTE_LOG_METADATA_TOPIC, copy.partition, offset, error)

"""The topic `__remote_log_metadata`: reads of its partitions from their leaders, and writes with acks=all.

Owns the requests and the meaning of their answers. This broker reads the partitions that it leads from its own logs,
and other partitions as a consumer does. Other brokers then require Topic:Read and Topic:Write. Never retries, and never
looks into a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kbroker.broker.coordinator_topics import CoordinatorLog
from kbroker.broker.own_produce import OwnProduce
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.long_work import awaited
from kbroker.partition import Partition
from kbroker.peers.interface import Answer, PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kbroker.replicas import Replicas
from kbroker.tiers.followed_metadata import MOVING, Piece, Want

_CONSUMER: Final = -1
_LATEST, _EARLIEST = -1, -2
_LIST_OFFSETS, _FETCH = 7, 13
"""The versions of requests to other brokers. A Fetch of this version has topic ids: it never reads another topic."""
_MOST_BYTES: Final = 8 << 20
_MOST_OF_PARTITION: Final = 512 << 10
_ANSWER_MS: Final = 5_000
"""The time limit of an answer in ms, in addition to the requested wait."""


class SegmentRecords:
    """The topic's partitions, on this broker and on others. `peers` is None for a node that is alone."""

    def __init__(
        self,
        node_id: int,
        metadata: ClusterMetadata,
        replicas: Replicas,
        own: OwnProduce,
        peers: PeersByNode | None,
    ) -> None:
        topic = CoordinatorLog(REMOTE_LOG_METADATA_TOPIC, metadata, replicas)
        self.partition_count, self.ensure_topic = topic.partition_count, topic.ensure_topic
        self._node_id = node_id
        self._controller = metadata
        self._replicas = replicas
        self._own = own
        self._peers = peers

    def topic_id(self) -> bytes:
        topic = self._controller.state.topics.get(REMOTE_LOG_METADATA_TOPIC)
        return b"" if topic is None else topic.topic_id

    def leader_of(self, partition: int) -> int:
        known = self._controller.state.partition(REMOTE_LOG_METADATA_TOPIC, partition)
        return -1 if known is None else known.leader

    def leads(self, partition: int) -> bool:
        return self.leader_of(partition) == self._node_id

    async def write(self, partition: int, batch: memoryview) -> ErrorCode:
        if self.leader_of(partition) < 0:
            return ErrorCode.LEADER_NOT_AVAILABLE
        topic_id = None if self._peers is None else self.topic_id()
        return await awaited(await self._own.produce(REMOTE_LOG_METADATA_TOPIC, partition, batch, topic_id))

    # -- bounds

    async def bounds(self, leader: int, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        if leader == self._node_id:
            return self._bounds_here(partitions)
        ends = await self._offsets(leader, partitions, _LATEST)
        starts = await self._offsets(leader, list(ends), _EARLIEST) if ends else {}
        return {each: (starts[each], ends[each]) for each in starts}

    def _bounds_here(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        found = {}
        for each in partitions:
            try:
                leader = self._replicas.leader(REMOTE_LOG_METADATA_TOPIC, each)
            except ApiError:
                continue
            if leader.knows_high_watermark:  # otherwise an earlier leader may have committed further records
                found[each] = leader.log.log_start_offset, leader.log.high_watermark
        return found

    async def _offsets(self, leader: int, partitions: Sequence[int], which: int) -> dict[int, int]:
        wanted = [ListOffsetsPartition(each, self._epoch(each), which) for each in partitions]
        request = ListOffsetsRequest(_CONSUMER, 0, [ListOffsetsTopic(REMOTE_LOG_METADATA_TOPIC, wanted)])
        answer = await self._ask(leader, request, _LIST_OFFSETS, ListOffsetsResponse, _ANSWER_MS)
        offsets = {}
        for each in (each for topic in answer.topics for each in topic.partitions):
            code = known_error(each.error_code)
            if code is ErrorCode.NONE:
                offsets[each.partition_index] = each.offset
            elif code not in MOVING:
                raise ApiError(code)
        return offsets

    def _epoch(self, partition: int) -> int:
        """Return the known leader epoch, with which a replaced leader refuses requests; -1 if it is unknown."""
        known = self._controller.state.partition(REMOTE_LOG_METADATA_TOPIC, partition)
        return -1 if known is None else known.leader_epoch

    async def _ask(self, leader: int, request: object, version: int, answer: type[Answer], timeout_ms: int) -> Answer:
        if self._peers is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            return await self._peers.ask(leader, request, version, answer, timeout_ms)
        except PeerUnavailable as error:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, str(error)) from None

    # -- records

    async def read(self, leader: int, wants: Sequence[Want], wait_ms: int) -> list[Piece]:
        if not wants:
            return []
        if leader == self._node_id:
            return await self._read_here(wants, wait_ms)
        topic = FetchTopic(
            topic_id=self.topic_id(),
            partitions=[
                FetchPartition(
                    partition=each.partition,
                    current_leader_epoch=self._epoch(each.partition),
                    fetch_offset=each.offset,
                    last_fetched_epoch=each.last_epoch,
                    partition_max_bytes=_MOST_OF_PARTITION,
                )
                for each in wants
            ],
        )
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=_MOST_BYTES, topics=[topic])
        answer = await self._ask(leader, request, _FETCH, FetchResponse, wait_ms + _ANSWER_MS)
        code = known_error(answer.error_code)
        if code is not ErrorCode.NONE:
            raise ApiError(code)
        return [_piece(each) for one in answer.responses for each in one.partitions]

    async def _read_here(self, wants: Sequence[Want], wait_ms: int) -> list[Piece]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while True:
            changed = loop.create_future()
            waiter = _Waiter(changed)
            partitions = [self._replicas.get((REMOTE_LOG_METADATA_TOPIC, each.partition)) for each in wants]
            for partition in filter(None, partitions):
                partition.waiters[waiter] = None
            timer = loop.call_at(until, waiter.poke)
            try:
                found = _read_some(wants, partitions)
                if found or loop.time() >= until:
                    return found
                await changed
            finally:
                timer.cancel()
                for partition in filter(None, partitions):
                    partition.waiters.pop(waiter, None)


class _Waiter:
    """A wait for new records of some partitions."""

    def __init__(self, changed: asyncio.Future[None]) -> None:
        self._changed = changed

    def poke(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


def _read_some(wants: Sequence[Want], partitions: Sequence[Partition | None]) -> list[Piece]:
    """Read partitions of this broker, up to a size at which other work should have its turn."""
    found, size = [], 0
    for want, partition in zip(wants, partitions, strict=True):
        piece = _read_one(want, partition) if size < _MOST_OF_PARTITION else None
        if piece is not None:
            found.append(piece)
            size += len(piece.records)
    return found


def _read_one(want: Want, partition: Partition | None) -> Piece | None:
    """Read a partition of this broker; return None if there are no new records."""
    if partition is None or not partition.leading:
        return Piece(want.partition, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log = partition.log
    try:
        if want.last_epoch >= 0:
            epoch, end = log.proven_epochs().end_offset_for(want.last_epoch, log.log_end_offset)
            if epoch != want.last_epoch or end < want.offset:
                return Piece(want.partition, is_elsewhere=True)
        if want.offset >= log.high_watermark:
            return None
        found = log.read(want.offset, _MOST_OF_PARTITION, log.high_watermark, min_one=True)
        return Piece(want.partition, found.view()) if found.size else None
    except ApiError as error:
        is_elsewhere = error.code is ErrorCode.OFFSET_OUT_OF_RANGE
        return Piece(want.partition, code=error.code, is_elsewhere=is_elsewhere)


def _piece(data: PartitionData) -> Piece:
    code, parts = known_error(data.error_code), data.diverging_epoch
    is_diverging = parts is not None and (parts.epoch >= 0 or parts.end_offset >= 0)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE or (code is ErrorCode.NONE and is_diverging):
        return Piece(data.partition_index, is_elsewhere=True)
    return Piece(data.partition_index, memoryview(data.records or b""), code)

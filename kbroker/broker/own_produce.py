"""Batches that the broker itself produces into clients' topics, as a client with acks=all would.

Owns the path to a partition's leader: an append on this broker, or a Produce request to another broker. Never retries.
An append on this broker needs no right, because the broker itself decides what it produces. Another broker requires
Topic:Write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from kbroker.clock import Clock
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo
from kbroker.log.record_validation import TakesLonger, judged
from kbroker.partition import Partition
from kbroker.peers.interface import Answer, PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kbroker.protocol.wire import ZERO_UUID
from kbroker.replicas import Replicas

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 30_000
"""The time in ms within which the other replicas must commit a batch (ShareGroupDLQStateManager)."""
_VERSION: Final = 9
"""The version of Produce between brokers.

Every broker of a cluster on ZooKeeper serves this version, which has topic names.
"""
_VERSION_OF_IDS: Final = 13
"""A version of Produce that has topic ids. Brokers of Apache Kafka on ZooKeeper do not serve it."""
_ACKS_ALL: Final = -1

Outcome = ErrorCode | Awaitable[ErrorCode]


class OwnProduce(Protocol):
    """Produces one batch into a partition."""

    def leader_of(self, topic: str, index: int) -> int:
        """Return the broker that would get a batch.

        Return -1 if there is no such broker, or if this broker is a single node.
        """

    async def produce(self, topic: str, index: int, batch: memoryview, topic_id: bytes | None = None) -> Outcome:
        """Produce a batch, which may be large and is not copied. Return when its memory is not needed any more.

        If `topic_id` is given, only the topic with this id gets the batch, and not another topic of the same name. The
        partition's leader must then be a broker of kbroker. The outcome is known when all in-sync replicas have the
        batch. After a failure, the outcome is the error.
        """


class ProduceHere:
    """Produces into partitions that this broker leads."""

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def leader_of(self, topic: str, index: int) -> int:  # noqa: ARG002 - this broker leads all
        return -1

    async def produce(self, topic: str, index: int, batch: memoryview, topic_id: bytes | None = None) -> Outcome:
        """Append the batch. If this broker does not lead the partition, return NOT_LEADER_OR_FOLLOWER."""
        try:
            await self._replicas.hosted_of(topic)
            leader = self._replicas.leader(topic, index)
            if topic_id is not None and topic_id != leader.topic_id:
                return ErrorCode.UNKNOWN_TOPIC_ID
            info = await self._append(leader, batch)
            del batch  # the wait for the replicas may take half a minute
        except (AppendError, ApiError) as err:
            return err.code
        except OSError as err:
            log.error("%s-%d: %s", topic, index, err)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if leader.log.high_watermark > info.last_offset:
            return ErrorCode.NONE
        return _committed(leader, info.last_offset + 1)

    async def _append(self, leader: Partition, batch: memoryview) -> AppendInfo:
        """Append a batch. If the batch takes long to open, open it in slices."""
        opened = None
        while True:
            try:
                return leader.append(batch, _ACKS_ALL, self._clock.now_ms(), CLIENT, opened=opened)
            except TakesLonger as longer:
                opened = await self._replicas.openings.run(longer.opening.again, longer.opening.work)
                if longer.opening.check is not None:
                    opened = await judged(opened, longer.opening.check, leader.log.producers.is_repeated)


async def _committed(leader: Partition, offset: int) -> ErrorCode:
    """Wait until all in-sync replicas have all records below an offset."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[ErrorCode] = loop.create_future()

    def notify(code: ErrorCode) -> None:
        if not ended.done():
            ended.set_result(code)

    give_up = leader.when_committed(offset, notify)
    timer = loop.call_later(TIMEOUT_MS / 1000, notify, ErrorCode.REQUEST_TIMED_OUT)
    try:
        return await ended
    finally:
        timer.cancel()
        if give_up is not None:
            give_up()


class PeerPool:
    """Several connections to each broker. A request uses the connection with the fewest requests in flight."""

    def __init__(self, peers: Sequence[PeersByNode]) -> None:
        self._peers = peers
        self._used: dict[tuple[int, int], int] = {}

    async def ask(self, node_id: int, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        """Send a request like `PeersByNode.ask`."""
        used = self._used
        number = min(range(len(self._peers)), key=lambda each: used.get((node_id, each), 0))
        place = node_id, number
        used[place] = used.get(place, 0) + 1
        try:
            return await self._peers[number].ask(node_id, request, version, answer, timeout_ms)
        finally:
            used[place] -= 1
            if not used[place]:
                del used[place]


class ProduceAnywhere:
    """Produces into partitions led by any broker of a cluster.

    `leader_of` returns a partition's leader, and None or -1 if there is no leader.
    """

    def __init__(
        self,
        node_id: int,
        here: ProduceHere,
        leader_of: Callable[[tuple[str, int]], int | None],
        peers: PeersByNode | PeerPool,
    ) -> None:
        self._node_id = node_id
        self._here = here
        self._leader_of = leader_of
        self._peers = peers

    def leader_of(self, topic: str, index: int) -> int:
        leader = self._leader_of((topic, index))
        return -1 if leader is None else leader

    async def produce(self, topic: str, index: int, batch: memoryview, topic_id: bytes | None = None) -> Outcome:
        leader = self.leader_of(topic, index)
        if leader == self._node_id:
            return await self._here.produce(topic, index, batch, topic_id)
        return await self._ask(leader, topic, index, batch, topic_id)

    async def _ask(self, leader: int, topic: str, index: int, batch: memoryview, topic_id: bytes | None) -> ErrorCode:
        data = TopicProduceData(topic, topic_id or ZERO_UUID, [PartitionProduceData(index, batch)])
        request = ProduceRequest(acks=_ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[data])
        version = _VERSION if topic_id is None else _VERSION_OF_IDS
        try:
            answer = await self._peers.ask(leader, request, version, ProduceResponse, 2 * TIMEOUT_MS)
        except PeerUnavailable:
            return ErrorCode.NETWORK_EXCEPTION
        found = [
            each.error_code
            for topic_answer in answer.responses
            for each in topic_answer.partition_responses
            if each.index == index and (topic_answer.name == topic or topic_id is not None)
        ]
        return known_error(found[0]) if found else ErrorCode.UNKNOWN_SERVER_ERROR

"""Batches that the broker itself produces into clients' topics, as a client with acks=all would.

Owns the path to a partition's leader: an append on this broker, or a Produce request to another broker. Never retries.
An append on this broker needs no right, because the broker itself decides what it produces. Another broker requires
Topic:Write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from kbroker.clock import Clock
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo
from kbroker.log.record_validation import TakesLonger, judged
from kbroker.partition import Partition
from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kbroker.replicas import Replicas

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 30_000
"""How long the other replicas may take to commit a batch, in ms (ShareGroupDLQStateManager)."""
_VERSION: Final = 9
"""The version of Produce between brokers. Every broker of a cluster on ZooKeeper serves it. It has topic names."""
_ACKS_ALL: Final = -1

Outcome = ErrorCode | Awaitable[ErrorCode]


class OwnProduce(Protocol):
    """Produces one batch into a partition."""

    def leader_of(self, topic: str, index: int) -> int:
        """Return the broker that would get a batch; -1 if there is none, and for this broker on a single node."""

    async def produce(self, topic: str, index: int, batch: memoryview) -> Outcome:
        """Produce a batch, which may be large and is not copied. Return when its memory is not needed any more.

        The outcome is known when all in-sync replicas have the batch. Otherwise it is the error.
        """


class ProduceHere:
    """Produces into partitions that this broker leads."""

    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def leader_of(self, topic: str, index: int) -> int:  # noqa: ARG002 - this broker leads all
        return -1

    async def produce(self, topic: str, index: int, batch: memoryview) -> Outcome:
        """Append the batch. If this broker does not lead the partition, return NOT_LEADER_OR_FOLLOWER."""
        try:
            await self._replicas.hosted_of(topic)
            leader = self._replicas.leader(topic, index)
            info = await self._append(leader, batch)
            del batch  # the replicas may take half a minute
        except (AppendError, ApiError) as err:
            return err.code
        except OSError as err:
            log.error("%s-%d: %s", topic, index, err)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if leader.log.high_watermark > info.last_offset:
            return ErrorCode.NONE
        return _committed(leader, info.last_offset + 1)

    async def _append(self, leader: Partition, batch: memoryview) -> AppendInfo:
        """Append a batch. If opening the batch takes long, it is opened in slices."""
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


class ProduceAnywhere:
    """Produces into partitions led by any broker of a cluster.

    `leader_of` returns a partition's leader, and None or -1 if there is none.
    """

    def __init__(
        self, node_id: int, here: ProduceHere, leader_of: Callable[[tuple[str, int]], int | None], peers: PeersByNode
    ) -> None:
        self._node_id = node_id
        self._here = here
        self._leader_of = leader_of
        self._peers = peers

    def leader_of(self, topic: str, index: int) -> int:
        leader = self._leader_of((topic, index))
        return -1 if leader is None else leader

    async def produce(self, topic: str, index: int, batch: memoryview) -> Outcome:
        leader = self.leader_of(topic, index)
        if leader == self._node_id:
            return await self._here.produce(topic, index, batch)
        return await self._ask(leader, topic, index, batch)

    async def _ask(self, leader: int, topic: str, index: int, batch: memoryview) -> ErrorCode:
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index, batch)])
        request = ProduceRequest(acks=_ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[data])
        try:
            answer = await self._peers.ask(leader, request, _VERSION, ProduceResponse, 2 * TIMEOUT_MS)
        except PeerUnavailable:
            return ErrorCode.NETWORK_EXCEPTION
        found = [
            each.error_code
            for topic_answer in answer.responses
            for each in topic_answer.partition_responses
            if topic_answer.name == topic and each.index == index
        ]
        return known_error(found[0]) if found else ErrorCode.UNKNOWN_SERVER_ERROR

"""Writes the markers that end transactions to partitions that this broker leads.

Writes a marker to a partition's log or, through the group coordinator, to __consumer_offsets. Never decides the outcome
of a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from kbroker.clock import Clock
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.coordination.encoding import marker_batch
from kbroker.coordination.shard import EndOfTransaction
from kbroker.failpoints import passed
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.append_info import COORDINATOR
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.long_work import then
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replicas import Replicas
from kbroker.txn.marker_sender import Answers, Marker
from kbroker.txn.transaction import TopicPartition

_NOT_READY = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class LocalMarkers:
    """Writes the ends of transactions to partitions that this broker leads.

    A marker counts as written once it is committed, as with acks=all. Otherwise the transaction could stay open in the
    log of a later leader. `timeout_ms` limits the wait for the commit (request.timeout.ms).
    """

    def __init__(self, replicas: Replicas, groups: GroupCoordinator, clock: Clock, timeout_ms: float) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock
        self._timeout_ms = timeout_ms

    def write(self, marker: Marker) -> Answers | Awaitable[Answers]:
        """Append a marker to its partitions. Return an error code for each partition."""
        end = EndOfTransaction(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.commit,
            marker.transaction_version,
        )
        answers: dict[TopicPartition, ErrorCode] = {}
        waiting: dict[TopicPartition, Awaitable[ErrorCode]] = {}
        for partition in marker.partitions:
            if partition[0] == OFFSETS_TOPIC and self._replicas.get(partition) is not None:
                answer = self._end_offsets(partition[1], end)
            else:
                answer = self._append(partition, end)
            if isinstance(answer, ErrorCode):
                answers[partition] = answer
            else:
                waiting[partition] = answer
            passed("txn.marker")
        return _gather(answers, waiting) if waiting else answers

    def _end_offsets(self, index: int, end: EndOfTransaction) -> ErrorCode | Awaitable[ErrorCode]:
        return then(self._groups.end_transaction(index, end), _for_coordinator)

    def _append(self, partition: TopicPartition, end: EndOfTransaction) -> ErrorCode | Awaitable[ErrorCode]:
        now_ms, version = self._clock.now_ms(), end.transaction_version
        try:
            leader = self._replicas.leader(*partition)
            info = leader.append(marker_batch(end, now_ms), -1, now_ms, COORDINATOR, UNCHECKED, version)
        except ApiError as err:
            return err.code
        if leader.log.high_watermark > info.last_offset:
            return ErrorCode.NONE
        return self._committed(leader, info.last_offset + 1)

    async def _committed(self, leader: Partition, offset: int) -> ErrorCode:
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await leader.committed(offset)
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except ApiError as err:
            return err.code
        return ErrorCode.NONE


async def _gather(
    answers: dict[TopicPartition, ErrorCode], waiting: dict[TopicPartition, Awaitable[ErrorCode]]
) -> Answers:
    """Wait for all partitions concurrently, so that each partition has the complete timeout."""
    answers.update(zip(waiting, await asyncio.gather(*waiting.values()), strict=True))
    return answers


def _for_coordinator(code: ErrorCode) -> ErrorCode:
    """Convert the group coordinator's error for the transaction coordinator, which knows only errors of partitions."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code

"""The markers that end transactions, written into partitions that this broker leads.

Owns the way of a marker to a partition's log, or to the group coordinator for one of its own topic. Never decides
anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from kbroker.clock import Clock
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.coordination.batches import marker_batch
from kbroker.coordination.outcome import EndOfTransaction
from kbroker.failpoints import passed
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.append_info import COORDINATOR
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replicas import Replicas
from kbroker.txn.marker_sender import Answers, Marker
from kbroker.txn.transaction import TopicPartition

_REPLICATED_WITHIN_MS = 30_000
"""How long markers wait for other replicas (KafkaApis: request.timeout.ms of the broker)."""
_NOT_READY = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class LocalMarkers:
    """Writes the ends of transactions into partitions that this broker leads."""

    def __init__(self, replicas: Replicas, groups: GroupCoordinator, clock: Clock) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock

    def write(self, marker: Marker) -> Answers | Awaitable[Answers]:
        """Append a marker to its partitions; an error code for each."""
        end = EndOfTransaction(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.commit,
            marker.transaction_version,
        )
        answers: dict[TopicPartition, ErrorCode] = {}
        waiting: dict[TopicPartition, Awaitable[ErrorCode]] = {}
        replicated: dict[TopicPartition, Awaitable[None]] = {}
        for partition in marker.partitions:
            if partition[0] == OFFSETS_TOPIC and self._replicas.get(partition) is not None:
                answer = self._groups.end_transaction(partition[1], end)
                if isinstance(answer, ErrorCode):
                    answers[partition] = _for_coordinator(answer)
                else:
                    waiting[partition] = answer
            else:
                appended = self._append(partition, end)
                if isinstance(appended, ErrorCode):
                    answers[partition] = appended
                else:
                    replicated[partition] = appended
            passed("txn.marker")
        return _gather(answers, waiting, replicated) if waiting or replicated else answers

    def _append(self, partition: TopicPartition, end: EndOfTransaction) -> ErrorCode | Awaitable[None]:
        """Append to a log; where other replicas are in sync, return what brings their word or an ApiError."""
        now_ms = self._clock.now_ms()
        try:
            leader = self._replicas.leader(*partition)
            info = leader.append(marker_batch(end, now_ms), -1, now_ms, COORDINATOR, UNCHECKED, end.transaction_version)
            if isinstance(leader, ReplicatedPartition) and leader.log.high_watermark <= info.last_offset:
                return leader.committed(info.last_offset + 1)
        except ApiError as err:
            return err.code
        return ErrorCode.NONE


async def _gather(
    answers: dict[TopicPartition, ErrorCode],
    waiting: dict[TopicPartition, Awaitable[ErrorCode]],
    replicated: dict[TopicPartition, Awaitable[None]],
) -> Answers:
    try:
        async with asyncio.timeout(_REPLICATED_WITHIN_MS / 1000):
            for partition, committed in replicated.items():
                try:
                    await committed
                    answers[partition] = ErrorCode.NONE
                except ApiError as err:
                    answers[partition] = err.code
    except TimeoutError:
        for partition in replicated:
            answers.setdefault(partition, ErrorCode.REQUEST_TIMED_OUT)
    finally:
        for committed in replicated.values():
            if isinstance(committed, asyncio.Future):
                committed.cancel()  # those that are done stay so
    for partition, answer in waiting.items():
        answers[partition] = _for_coordinator(await answer)
    return answers


def _for_coordinator(code: ErrorCode) -> ErrorCode:
    """Return what the transaction coordinator is told of the group coordinator: it only knows partitions."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code

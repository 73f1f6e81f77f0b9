"""The markers that end transactions, written into partitions that this broker leads.

Owns the way of a marker to a partition's log, or to the group coordinator for one of its own topic. Never decides
anything.
"""

from __future__ import annotations

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
from kbroker.replicas import Replicas
from kbroker.txn.marker_sender import Answers, Marker
from kbroker.txn.transaction import TopicPartition

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
        for partition in marker.partitions:
            if partition[0] == OFFSETS_TOPIC and self._replicas.get(partition) is not None:
                answer = self._groups.end_transaction(partition[1], end)
                if isinstance(answer, ErrorCode):
                    answers[partition] = _for_coordinator(answer)
                else:
                    waiting[partition] = answer
            else:
                answers[partition] = self._append(partition, end)
            passed("txn.marker")
        return _gather(answers, waiting) if waiting else answers

    def _append(self, partition: TopicPartition, end: EndOfTransaction) -> ErrorCode:
        now_ms = self._clock.now_ms()
        try:
            leader = self._replicas.leader(*partition)
            leader.append(marker_batch(end, now_ms), -1, now_ms, COORDINATOR, UNCHECKED, end.transaction_version)
        except ApiError as err:
            return err.code
        return ErrorCode.NONE


async def _gather(
    answers: dict[TopicPartition, ErrorCode], waiting: dict[TopicPartition, Awaitable[ErrorCode]]
) -> Answers:
    for partition, answer in waiting.items():
        answers[partition] = _for_coordinator(await answer)
    return answers


def _for_coordinator(code: ErrorCode) -> ErrorCode:
    """Return what the transaction coordinator is told of the group coordinator: it only knows partitions."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _NOT_READY else code

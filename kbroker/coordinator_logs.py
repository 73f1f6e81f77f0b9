"""The coordinators' topics on this broker: their logs, and the ends of transactions that are written here.

Owns the seams between siblings that may not know each other: a coordinator's `Writer` over the hosted partitions, and
the local `Target` of transaction markers. Never decides anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator

from kbroker.clock import Clock
from kbroker.controller.controller import Controller
from kbroker.coordination_batches import marker_batch
from kbroker.coordination_outcome import EndOfTransaction
from kbroker.failpoints import passed
from kbroker.group_coordinator.coordinator import TOPIC as OFFSETS_TOPIC
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.append_info import COORDINATOR
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import iter_batches
from kbroker.replicas import Replicas
from kbroker.txn.markers import Answers, Marker
from kbroker.txn.transaction import TopicPartition

_READ_BYTES = 4 * 1024 * 1024
_NOT_READY = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class CoordinatorLog:
    """A coordinator's way to its topic."""

    def __init__(self, topic: str, controller: Controller, replicas: Replicas) -> None:
        self._topic = topic
        self._controller = controller
        self._replicas = replicas

    def partition_count(self) -> int:
        """Return how many partitions the topic has; 0 when it does not exist."""
        topic = self._controller.state.topics.get(self._topic)
        return len(topic.partitions) if topic else 0

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = UNCHECKED, transaction_version: int = 0
    ) -> int:
        """Append a batch of records; return the offset behind it."""
        leader = self._replicas.leader(self._topic, partition)
        return leader.append(batch, -1, now_ms, COORDINATOR, guard, transaction_version).last_offset + 1

    def max_batch_bytes(self, partition: int) -> int:
        """Return how large a batch may be; raises ApiError where the partition is not led here."""
        config = self._replicas.leader(self._topic, partition).log.config
        return min(config.max_message_bytes, config.segment_bytes)

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return None when everything below `offset` is committed; on one node it always is."""
        if self._replicas.leader(self._topic, partition).log.high_watermark < offset:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return None

    def read(self, partition: int) -> Iterator[memoryview]:
        """Yield the partition's batches from its start to its high watermark, in chunks."""
        partition_log = self._replicas.leader(self._topic, partition).log
        offset = partition_log.log_start_offset
        while offset < partition_log.high_watermark:
            piece = partition_log.read(offset, _READ_BYTES, partition_log.high_watermark, min_one=True)
            if not len(piece):
                raise OSError(f"{self._topic}-{partition} ends before its high watermark")
            view = piece.view()
            yield view
            offset = _next_offset(view)

    def ensure_topic(self) -> None:
        """Create the topic if it does not exist."""
        if self._topic not in self._controller.state.topics:
            self._controller.auto_create(self._topic)


def _next_offset(view: memoryview) -> int:
    last = 0
    for _, header in iter_batches(view):
        last = header.last_offset + 1
    return last


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

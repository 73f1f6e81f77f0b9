"""The coordinators' topics on this broker: their logs, and the partitions that this broker leads and coordinates.

Loads a partition's state after this broker becomes its leader, and drops the state afterwards. Owns also the
coordinators' `Writer`, which writes to the hosted partitions. Never decides about leadership.

A single node follows the cluster's state. A node of a cluster follows the controller's requests to the replica
(LeaderAndIsr, StopReplica), as Kafka does. The state (UpdateMetadata) is not enough: it may change before the partition
is hosted, and it does not show a leader change that has been reversed meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator

from kbroker.cluster_state import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC, ClusterState, TopicState
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.append_info import COORDINATOR
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.partition import Partition
from kbroker.protocol.records import iter_batches
from kbroker.replicas import Replicas
from kbroker.schema_registry.service import RegistryService
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.txn.coordinator import TransactionCoordinator

_READ_BYTES = 4 * 1024 * 1024
Coordinator = GroupCoordinator | TransactionCoordinator | ShareCoordinator | RegistryService


class CoordinatorLeadership:
    """Follows the leaders of the coordinators' partitions."""

    def __init__(
        self,
        node_id: int,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        shares: ShareCoordinator,
    ) -> None:
        self._node_id = node_id
        self._by_topic: dict[str, Coordinator] = {
            OFFSETS_TOPIC: groups,
            TRANSACTIONS_TOPIC: transactions,
            SHARE_STATE_TOPIC: shares,
        }

    def add(self, topic: str, coordinator: Coordinator, hosted: Iterable[Partition]) -> None:
        """Register a coordinator, which then follows its topic. `hosted` are this broker's partitions."""
        self._by_topic[topic] = coordinator
        for partition in hosted:
            self.changed(partition)

    # --- on a node that is alone

    def follow(self, old: ClusterState, new: ClusterState) -> None:
        """Load the state of each coordinator partition that this broker has begun to lead."""
        self.follow_deletions(old, new)
        for name, coordinator in self._by_topic.items():
            now = new.topics.get(name)
            if now is not None:
                self._lead(coordinator, old.topics.get(name), now)

    def _lead(self, coordinator: Coordinator, before: TopicState | None, now: TopicState) -> None:
        for index, partition in enumerate(now.partitions):
            known = before.partitions[index] if before and index < len(before.partitions) else None
            if partition.leader != self._node_id:
                coordinator.resign(index)
            elif known is None or known.leader_epoch != partition.leader_epoch:
                coordinator.on_leadership(index, partition.leader_epoch)

    # --- in a cluster

    def changed(self, partition: Partition) -> None:
        """Load a partition's state if this broker now leads the partition; otherwise drop the state."""
        coordinator = self._by_topic.get(partition.topic)
        if coordinator is None:
            return
        if partition.leading:
            coordinator.on_leadership(partition.index, partition.leader_epoch)
        else:
            coordinator.resign(partition.index)

    def lost(self, keys: Iterable[tuple[str, int]]) -> None:
        """Drop the state of partitions that are no longer hosted here."""
        for topic, index in keys:
            coordinator = self._by_topic.get(topic)
            if coordinator is not None:
                coordinator.resign(index)

    def follow_deletions(self, old: ClusterState, new: ClusterState) -> None:
        """Drop the state of a deleted topic, because a new topic with the same name may have other partitions."""
        if old.topics is new.topics:
            return
        for name, coordinator in self._by_topic.items():
            if name in old.topics and name not in new.topics:
                coordinator.on_topic_deleted()


class CoordinatorLog:
    """A coordinator's access to its topic."""

    def __init__(self, topic: str, controller: ClusterMetadata, replicas: Replicas) -> None:
        self._topic = topic
        self._controller = controller
        self._replicas = replicas

    def partition_count(self) -> int:
        """Return the topic's number of partitions; 0 if the topic does not exist."""
        topic = self._controller.state.topics.get(self._topic)
        return len(topic.partitions) if topic and self._controller.is_whole(self._topic) else 0

    def append(
        self, partition: int, batch: bytes, now_ms: int, *, guard: object = UNCHECKED, transaction_version: int = 0
    ) -> int:
        """Append a batch of records. Return the offset after the batch."""
        leader = self._replicas.leader(self._topic, partition)
        return leader.append(batch, -1, now_ms, COORDINATOR, guard, transaction_version).last_offset + 1

    def delete_before(self, partition: int, offset: int, now_ms: int) -> None:
        """Delete the records below an offset. Raises ApiError."""
        leader = self._replicas.leader(self._topic, partition)
        if leader.log.advance_log_start(offset, now_ms):
            leader.poke()
            self._replicas.logs.save_log_starts()

    def max_batch_bytes(self, partition: int) -> int:
        """Return the maximum size of a batch in bytes. Raises ApiError if this broker does not lead the partition."""
        config = self._replicas.leader(self._topic, partition).log.config
        return min(config.max_message_bytes, config.segment_bytes)

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return None if all records below `offset` are committed, otherwise a future.

        On a single node, all records are always committed.
        """
        leader = self._replicas.leader(self._topic, partition)
        return None if leader.log.high_watermark >= offset else leader.committed(offset)

    def copied(self, partition: int, offset: int) -> Awaitable[None] | None:
        """Return None if every replica that may be elected next has all records below `offset`.

        Otherwise return a future to await.
        """
        return self._replicas.leader(self._topic, partition).copied(offset)

    def end_offset(self, partition: int) -> int:
        """Return the end offset. Raises ApiError if this broker does not lead the partition."""
        return self._replicas.leader(self._topic, partition).log.log_end_offset

    def read(self, partition: int, begin: int = 0) -> Iterator[memoryview]:
        """Yield the partition's batches in chunks, from an offset (or the start) to the end.

        The method reads beyond the high watermark, because a new leader's high watermark may be lower than offsets that
        the previous leader has acknowledged. If the partition was just created together with many others, the method
        hosts it first.
        """
        self._replicas.host_now(self._topic, partition)
        partition_log = self._replicas.leader(self._topic, partition).log
        offset = max(partition_log.log_start_offset, begin)
        while offset < partition_log.log_end_offset:
            piece = partition_log.read(offset, _READ_BYTES, partition_log.log_end_offset, min_one=True)
            if not len(piece):
                raise OSError(f"{self._topic}-{partition} ends before its end offset")
            view = piece.view()
            yield view
            offset = _next_offset(view)

    def ensure_topic(self) -> None:
        """Create the topic if it does not exist."""
        if self._topic not in self._controller.decided.topics:
            self._controller.auto_create(self._topic)


def _next_offset(view: memoryview) -> int:
    last = 0
    for _, header in iter_batches(view):
        last = header.last_offset + 1
    return last

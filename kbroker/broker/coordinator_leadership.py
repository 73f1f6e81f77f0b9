"""The partitions of the coordinators' topics that this broker coordinates: those that it leads.

Owns loading a partition's state after it becomes leader, and dropping it afterwards. Never decides about leadership.

A node that is alone follows the cluster's state. In a cluster the controller's requests to the replica (LeaderAndIsr,
StopReplica) count, as in Kafka. The state (UpdateMetadata) changes at other times, maybe before the partition is
hosted, and misses a change that has been undone since.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState, TopicState
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.replicas import Partition
from kbroker.txn.coordinator import TransactionCoordinator

Coordinator = GroupCoordinator | TransactionCoordinator


class CoordinatorLeadership:
    """Follows the leaders of the coordinators' partitions."""

    def __init__(self, node_id: int, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._node_id = node_id
        self._by_topic: dict[str, Coordinator] = {OFFSETS_TOPIC: groups, TRANSACTIONS_TOPIC: transactions}

    # --- on a node that is alone

    def follow(self, old: ClusterState, new: ClusterState) -> None:
        """Load the state of a coordinator's partition once this broker leads it."""
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
        """Load the state of a partition that is now led here; drop that of one that is not."""
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
        """Drop the state of a deleted topic: the next one of its name may have other partitions."""
        if old.topics is new.topics:
            return
        for name, coordinator in self._by_topic.items():
            if name in old.topics and name not in new.topics:
                coordinator.on_topic_deleted()

"""Which partitions of the coordinators' topics this broker coordinates: those that it leads.

Owns the way from a change of the cluster's state to loading and giving up what a partition holds. Never decides who
leads.
"""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState, TopicState
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.txn.coordinator import TransactionCoordinator


class CoordinatorLeadership:
    """Follows the leaders of the coordinators' partitions."""

    def __init__(self, node_id: int, groups: GroupCoordinator, transactions: TransactionCoordinator) -> None:
        self._node_id = node_id
        self._groups = groups
        self._transactions = transactions

    def follow(self, old: ClusterState, new: ClusterState) -> None:
        """Load what a partition of a coordinator's topic holds once this broker leads it."""
        self._lead(self._groups, old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC))
        self._lead(self._transactions, old.topics.get(TRANSACTIONS_TOPIC), new.topics.get(TRANSACTIONS_TOPIC))

    def _lead(
        self, coordinator: GroupCoordinator | TransactionCoordinator, before: TopicState | None, now: TopicState | None
    ) -> None:
        if now is None:
            if before is not None:
                coordinator.on_topic_deleted()
            return
        for index, partition in enumerate(now.partitions):
            known = before.partitions[index] if before and index < len(before.partitions) else None
            if partition.leader != self._node_id:
                coordinator.resign(index)
            elif known is None or known.leader_epoch != partition.leader_epoch:
                coordinator.on_leadership(index, partition.leader_epoch)

"""The tombstones of a group of either protocol."""

from __future__ import annotations

from kbroker.coordination.outcome import CoordinatorRecord
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.store import Group
from kbroker.group_coordinator.records import consumer_group
from kbroker.group_coordinator.records.classic_group import group_tombstone


def group_tombstones(group: Group) -> list[CoordinatorRecord]:
    """Return the tombstones of a group, without its offsets."""
    return (
        consumer_group.group_tombstones(group)
        if isinstance(group, ConsumerGroup)
        else [group_tombstone(group.group_id)]
    )

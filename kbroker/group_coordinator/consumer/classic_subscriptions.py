"""The consumer protocol that is embedded in JoinGroup and SyncGroup: versioned subscriptions and assignments.

Owns reading and writing these bytes for members of the classic protocol in consumer groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.group_coordinator.assignment import Partitions
from kbroker.group_coordinator.consumer.reconciliation import Owned
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.compiler import decoder, encoder
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.consumer_groups import (
    AssignedPartitions,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)

_HIGHEST = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """A classic member's subscription, and its claimed partitions by topic name."""

    topics: frozenset[str]
    rack_id: str | None
    owned: tuple[tuple[str, tuple[int, ...]], ...]

    def owned_by_id(self, topics: Topics) -> Owned:
        """Return the claimed partitions of existing topics."""
        return [(topic_id, list(indexes)) for name, indexes in self.owned if (topic_id := topics.id_of(name))]


def version_of(data: bytes) -> int:
    """Return the version at the beginning of a subscription or an assignment. Raises Malformed."""
    if len(data) < 2:
        raise Malformed("a subscription or an assignment without a version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise Malformed(f"version {version} of a subscription or an assignment")
    return min(version, _HIGHEST)


def read_subscription(data: bytes) -> Subscription:
    """Read a subscription. Raises Malformed."""
    found = decoder(ConsumerProtocolSubscription, version_of(data))(data[2:])
    owned = tuple((each.topic, tuple(each.partitions)) for each in found.owned_partitions)
    return Subscription(frozenset(found.topics), found.rack_id or None, owned)


def read_assignment(data: bytes, topics: Topics) -> tuple[Partitions, bool]:
    """Read an assignment: its existing partitions, and whether there is user data. Raises Malformed.

    The leader of a classic group may have sent any bytes as the assignment.
    """
    if not data:
        return {}, False
    found = decoder(ConsumerProtocolAssignment, version_of(data))(data[2:])
    partitions = {
        topic_id: frozenset([index for index in each.partitions if 0 <= index < topics.count_of(topic_id)])
        for each in found.assigned_partitions
        if (topic_id := topics.id_of(each.topic)) is not None
    }
    return partitions, bool(found.user_data)


def assigned_by_name(data: bytes) -> list[tuple[str, list[int]]]:
    """Return the topics of an assignment with the numbers of their partitions, unchecked. Raises Malformed."""
    found = decoder(ConsumerProtocolAssignment, version_of(data))(data[2:]) if data else None
    return [] if found is None else [(each.topic, each.partitions) for each in found.assigned_partitions]


def write_assignment(partitions: Partitions, version: int, topics: Topics) -> bytes:
    """Return the bytes of an assignment in the version that the consumer uses."""
    assigned = [
        AssignedPartitions(topic=name, partitions=sorted(indexes))
        for topic_id, indexes in partitions.items()
        if (name := topics.name_of(topic_id)) is not None
    ]
    out = bytearray(version.to_bytes(2, "big"))
    encoder(ConsumerProtocolAssignment, version)(ConsumerProtocolAssignment(assigned_partitions=assigned), out, [])
    return bytes(out)

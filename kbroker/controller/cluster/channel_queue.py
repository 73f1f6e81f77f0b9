"""The pending requests of a broker: in order, and bounded by the number of partitions.

Owns the queue of one broker's channel. While few requests wait, each is sent unchanged. A broker that does not respond
for a long time gets merged requests with only the newest state of each partition. So the controller's memory has a
bound, even if a registered broker is slow or dead. Pure.

Merged requests have this order: first the metadata, because later requests may need an older leader's address; then the
stops of replicas that were assigned again afterwards; then the leaderships; then the other stops of replicas.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbroker.controller.cluster.context import Partition
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrPartitionState,
    StopReplicaPartitionState,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
)

MOST_WAITING = 16
"""The maximum number of requests that wait unmerged. Apache Kafka never merges requests."""


@dataclass(frozen=True, slots=True)
class Leaderships:
    """A LeaderAndIsr to be sent."""

    parts: Mapping[Partition, LeaderAndIsrPartitionState]


@dataclass(frozen=True, slots=True)
class Metadata:
    """An UpdateMetadata to be sent; its parts are shared with other brokers' queues."""

    parts: Mapping[Partition, UpdateMetadataPartitionState]
    live: list[UpdateMetadataBroker]


@dataclass(frozen=True, slots=True)
class Stops:
    """A StopReplica to be sent."""

    parts: Mapping[Partition, StopReplicaPartitionState]


Outgoing = Leaderships | Metadata | Stops


@dataclass(slots=True)
class _Together:
    """The merged requests."""

    metadata: dict[Partition, UpdateMetadataPartitionState] = field(default_factory=dict)
    live: list[UpdateMetadataBroker] | None = None
    stops_before: dict[Partition, StopReplicaPartitionState] = field(default_factory=dict)
    leaderships: dict[Partition, LeaderAndIsrPartitionState] = field(default_factory=dict)
    stops: dict[Partition, StopReplicaPartitionState] = field(default_factory=dict)

    def add(self, item: Outgoing) -> None:
        if isinstance(item, Metadata):
            self.metadata.update(item.parts)
            self.live = item.live
        elif isinstance(item, Leaderships):
            for partition, part in item.parts.items():
                self._lead(partition, part)
        else:
            for partition, stop in item.parts.items():
                self._stop(partition, stop)

    def _lead(self, partition: Partition, part: LeaderAndIsrPartitionState) -> None:
        stopped = self.stops.pop(partition, None)
        if stopped is not None:
            before = self.stops_before.get(partition)
            self.stops_before[partition] = _later(before, stopped)
        else:
            older = self.leaderships.get(partition)
            if older is not None and older.is_new:
                part.is_new = True
        self.leaderships[partition] = part

    def _stop(self, partition: Partition, stop: StopReplicaPartitionState) -> None:
        self.stops[partition] = stop = _later(self.stops.get(partition), stop)
        if stop.delete_partition:
            self.leaderships.pop(partition, None)

    def items(self) -> list[Outgoing]:
        found: list[Outgoing] = []
        if self.live is not None:
            found.append(Metadata(self.metadata, self.live))
        if self.stops_before:
            found.append(Stops(self.stops_before))
        if self.leaderships:
            found.append(Leaderships(self.leaderships))
        if self.stops:
            found.append(Stops(self.stops))
        return found


def _later(older: StopReplicaPartitionState | None, newer: StopReplicaPartitionState) -> StopReplicaPartitionState:
    if older is None or newer.delete_partition or not older.delete_partition:
        return newer
    return StopReplicaPartitionState(
        partition_index=newer.partition_index, leader_epoch=newer.leader_epoch, delete_partition=True
    )


class OutgoingQueue:
    """The pending requests of one broker."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self._most = most_waiting
        self._waiting: deque[Outgoing] = deque()
        self._together: _Together | None = None

    def __len__(self) -> int:
        return len(self._waiting) + (self._together is not None)

    def put(self, item: Outgoing) -> None:
        """Add a request at the end."""
        self._waiting.append(item)
        if len(self._waiting) > self._most:
            if self._together is None:
                self._together = _Together()
            while self._waiting:
                self._together.add(self._waiting.popleft())

    def take(self) -> Outgoing | None:
        """Remove and return the first request."""
        if self._together is not None:
            self._waiting.extendleft(reversed(self._together.items()))
            self._together = None
        return self._waiting.popleft() if self._waiting else None

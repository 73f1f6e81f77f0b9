"""Collects the requests that follow from one decision of the controller, then passes them to the channels.

Owns the order of a broker's requests: LeaderAndIsr, UpdateMetadata, StopReplica. Each request contains a partition's
state at the time of `send`. Never writes and never decides. (ControllerBrokerRequestBatch.)
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.controller.cluster import requests
from kbroker.controller.cluster.channel_queue import Leaderships, Metadata, Stops
from kbroker.controller.cluster.channels import Channels
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.pacing import paced
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrPartitionState,
    StopReplicaPartitionState,
    UpdateMetadataPartitionState,
)


class Batch:
    """Collects requests until `send`."""

    def __init__(self, context: Context, channels: Channels) -> None:
        self._context = context
        self._channels = channels
        self._leaderships: dict[int, dict[Partition, bool]] = {}
        self._stops: dict[int, dict[Partition, bool]] = {}
        self._informed: set[int] = set()
        self._metadata: dict[Partition, None] = {}

    def leadership(self, brokers: Iterable[int], partition: Partition, *, is_new: bool = False) -> None:
        """Send a partition's leadership to replicas, and its metadata to every live broker."""
        for broker in brokers:
            of_broker = self._leaderships.setdefault(broker, {})
            of_broker[partition] = is_new or of_broker.get(partition, False)
        self.metadata((partition,))

    def metadata(self, partitions: Iterable[Partition] = (), brokers: Iterable[int] | None = None) -> None:
        """Send the list of live brokers, and the metadata of partitions, to the given brokers or to all brokers."""
        self._informed.update(self._context.brokers if brokers is None else brokers)
        self._metadata.update(dict.fromkeys(partitions))

    def stop(self, broker: int, partition: Partition, *, delete: bool) -> None:
        """Request a broker to stop its replica."""
        of_broker = self._stops.setdefault(broker, {})
        of_broker[partition] = delete or of_broker.get(partition, False)

    async def send(self) -> None:
        """Pass the requests to the channels; unregistered brokers get no requests."""
        context = self._context
        for broker, of_broker in self._leaderships.items():
            if broker in context.brokers and (parts := await self._leadership_parts(of_broker)):
                self._channels.put(broker, Leaderships(parts))
        informed = [broker for broker in self._informed if broker in context.brokers]
        if informed:
            update = Metadata(await self._metadata_parts(), requests.live_brokers(context.brokers))
            for broker in informed:
                self._channels.put(broker, update)
        for broker, stopped in self._stops.items():
            if broker in context.brokers:
                self._channels.put(broker, Stops(await self._stop_parts(stopped)))

    async def _leadership_parts(self, of_broker: dict[Partition, bool]) -> dict[Partition, LeaderAndIsrPartitionState]:
        parts = {}
        async for partition, is_new in paced(of_broker.items()):
            state, replicas = self._context.states.get(partition), self._context.replicas(partition)
            if state is not None and replicas is not None:
                parts[partition] = requests.leadership(partition[1], state, replicas, is_new=is_new)
        return parts

    async def _metadata_parts(self) -> dict[Partition, UpdateMetadataPartitionState]:
        parts = {}
        async for partition in paced(self._metadata):
            part = requests.metadata(self._context, partition)
            if part is not None:
                parts[partition] = part
        return parts

    async def _stop_parts(self, stopped: dict[Partition, bool]) -> dict[Partition, StopReplicaPartitionState]:
        parts = {}
        async for partition, delete in paced(stopped.items()):
            parts[partition] = requests.stop(self._context, partition, delete=delete)
        return parts

"""The path to the share coordinator, on this broker or on another broker (Kafka: DefaultStatePersister).

Creates the share coordinator's topic at first use. Owns the choice of the broker that coordinates a share partition,
and the retries while the coordinator moves, loads its state or does not answer. Never decides about a state.

A write may have succeeded although its answer was lost. A repeated write is harmless, because the share coordinator
keeps the greater delivery count and state of each offset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from kbroker.clock import Clock
from kbroker.cluster_state import SHARE_STATE_TOPIC
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.long_work import awaited, each
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import share_state as messages
from kbroker.replicas import Replicas
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.share_coordinator.peer_states import (
    DELETE,
    INITIALIZE,
    NO_ANSWER,
    READ,
    SUMMARY,
    WRITE,
    Operation,
    PeerStates,
)
from kbroker.share_coordinator.persister import Change, Done, State, Summary
from kbroker.share_coordinator.share_partition_state import SharePartition

A = TypeVar("A", Done, State, Summary)
PAUSES_MS: Final = (100, 200, 400, 800, 1600, 3200, 6400)
"""The pauses in ms before each retry: about 13 s in total. Kafka's pauses are 2, 4, 8 and 16 s."""
PATIENCE_MS: Final = 30_000
"""The time in ms after which there is no retry. A broker that does not answer takes request.timeout.ms at each try."""
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        NO_ANSWER,
    }
)


class Pause:
    """Waits for about the given time, so that brokers that lost the same coordinator retry at different times."""

    def __init__(self) -> None:
        self._random = random.Random()

    async def __call__(self, ms: int) -> None:
        await asyncio.sleep(ms * self._random.uniform(0.8, 1.2) / 1000)


class SharePersister:
    """Implements `Persister`. `peers` are the other brokers of a cluster; `pause` waits for a number of ms."""

    def __init__(
        self,
        node_id: int,
        shares: ShareCoordinator,
        metadata: ClusterMetadata,
        replicas: Replicas,
        peers: PeerStates | None,
        clock: Clock,
        pause: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        self._node_id = node_id
        self._shares = shares
        self._metadata = metadata
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._pause = pause or Pause()

    async def initialize(
        self, group: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Done:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(
            INITIALIZE,
            place,
            lambda: self._shares.initialize(place, state_epoch, start_offset),
            lambda: messages.InitializedPartition(partition, state_epoch, start_offset),
        )

    async def read(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> State:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(
            READ,
            place,
            lambda: self._shares.read(place, leader_epoch),
            lambda: messages.PartitionToRead(partition, leader_epoch),
        )

    async def write(self, group: str, topic_id: bytes, partition: int, change: Change) -> Done:
        place = SharePartition(group, topic_id, partition)

        async def wanted() -> messages.PartitionToWrite:
            sent = await each(change.batches, lambda batch: messages.StateBatch(*batch))
            return messages.PartitionToWrite(
                partition,
                change.state_epoch,
                change.leader_epoch,
                change.start_offset,
                change.delivery_complete_count,
                sent,
            )

        return await self._asked(
            WRITE,
            place,
            lambda: self._shares.write(place, change),
            wanted,
        )

    async def delete(self, group: str, topic_id: bytes, partition: int) -> Done:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(
            DELETE,
            place,
            lambda: self._shares.delete(place),
            lambda: messages.PartitionToDelete(partition),
        )

    async def read_summary(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> Summary:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(
            SUMMARY,
            place,
            lambda: self._shares.read_summary(place),
            lambda: messages.PartitionToRead(partition, leader_epoch),
        )

    async def _asked(
        self,
        operation: Operation[A],
        place: SharePartition,
        here: Callable[[], A | Awaitable[A]],
        wanted: Callable[[], Any],
    ) -> A:
        """Return an answer. A request with a temporary error is retried, up to a limit.

        `here` calls this broker's share coordinator. If another broker has the coordinator, `wanted` creates the
        partition's element of the request to it.
        """
        until_ms = self._clock.monotonic_ms() + PATIENCE_MS
        answer = await self._ask(operation, place, here, wanted)
        for pause_ms in PAUSES_MS:
            if not self._passes(answer.error_code, place) or self._clock.monotonic_ms() > until_ms:
                break
            await self._pause(pause_ms)
            answer = await self._ask(operation, place, here, wanted)
        if answer.error_code == NO_ANSWER:
            return operation.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, answer.message)
        return answer

    def _passes(self, code: ErrorCode, place: SharePartition) -> bool:
        """Whether to retry after an error. The coordinator may learn of a new topic later than this broker."""
        if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return code in _PASSING
        state = self._metadata.state
        name = state.topic_names.get(place.topic_id)
        return name is not None and state.partition(name, place.partition) is not None

    async def _ask(
        self,
        operation: Operation[A],
        place: SharePartition,
        here: Callable[[], A | Awaitable[A]],
        wanted: Callable[[], Any],
    ) -> A:
        await self._topic_exists()
        coordinator = self._metadata.state.partition(SHARE_STATE_TOPIC, self._shares.partition_of(place))
        leader = -1 if coordinator is None else coordinator.leader
        if leader == self._node_id:
            return await awaited(here())
        if leader < 0 or self._peers is None:
            return operation.failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        return await self._peers.ask(leader, operation, place, await awaited(wanted()))

    async def _topic_exists(self) -> None:
        if not self._shares.ensure_topic():
            created = self._metadata.auto_created(SHARE_STATE_TOPIC)
            if created is not None:
                await created
            await self._replicas.hosted_of(SHARE_STATE_TOPIC)

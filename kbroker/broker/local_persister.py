"""The way to the share coordinator on a node that is alone: it is this broker's own.

Owns the creation of the share coordinator's topic at first use, and the retries while a partition of it is loaded
(Kafka: PersisterStateManager, over the network). Never decides about a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from kbroker.cluster_state import SHARE_STATE_TOPIC
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.long_work import awaited
from kbroker.protocol.errors import ErrorCode
from kbroker.replicas import Replicas
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.share_coordinator.persister import Done, State, Summary
from kbroker.share_coordinator.share_partition_state import SharePartition
from kbroker.share_coordinator.state_batches import StateBatch

A = TypeVar("A", Done, State, Summary)
_PAUSES_MS: Final = (100, 200, 400, 800)
"""The pauses before the tries after the first one."""
_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


async def _pause(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


class LocalPersister:
    """The `Persister` over this broker's share coordinator. `pause` waits some ms."""

    def __init__(
        self,
        shares: ShareCoordinator,
        metadata: ClusterMetadata,
        replicas: Replicas,
        pause: Callable[[int], Awaitable[None]] = _pause,
    ) -> None:
        self._shares = shares
        self._metadata = metadata
        self._replicas = replicas
        self._pause = pause

    async def initialize(
        self, group: str, topic_id: bytes, partition: int, state_epoch: int, start_offset: int
    ) -> Done:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(lambda: self._shares.initialize(place, state_epoch, start_offset))

    async def read(self, group: str, topic_id: bytes, partition: int, leader_epoch: int) -> State:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(lambda: self._shares.read(place, leader_epoch))

    async def write(
        self,
        group: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Done:
        place, count = SharePartition(group, topic_id, partition), delivery_complete_count
        return await self._asked(
            lambda: self._shares.write(place, state_epoch, leader_epoch, start_offset, count, batches)
        )

    async def delete(self, group: str, topic_id: bytes, partition: int) -> Done:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(lambda: self._shares.delete(place))

    async def read_summary(self, group: str, topic_id: bytes, partition: int, _leader_epoch: int) -> Summary:
        place = SharePartition(group, topic_id, partition)
        return await self._asked(lambda: self._shares.read_summary(place))

    async def _asked(self, ask: Callable[[], A | Awaitable[A]]) -> A:
        """Return an answer; an error that passes by itself is tried again a few times."""
        await self._topic_exists()
        for pause_ms in _PAUSES_MS:
            answer: A = await awaited(ask())
            if answer.error_code not in _PASSING:
                return answer
            await self._pause(pause_ms)
        return await awaited(ask())

    async def _topic_exists(self) -> None:
        if not self._shares.ensure_topic():
            created = self._metadata.auto_created(SHARE_STATE_TOPIC)
            if created is not None:
                await created
            await self._replicas.hosted_of(SHARE_STATE_TOPIC)

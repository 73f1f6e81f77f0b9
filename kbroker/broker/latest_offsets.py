"""The latest offsets of partitions, whichever broker leads them. The lag of share groups is computed from them.

Owns the requests to other brokers, one for each leader (Kafka: NetworkPartitionMetadataClient). Never retries: an error
is returned for the partition, and the client that describes the group may retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState
from kbroker.long_work import turn
from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kbroker.replicas import Replicas

log = logging.getLogger(__name__)

LatestOffset = tuple[ErrorCode, int]
"""An error, or the offset after the last record that every consumer can read."""
VERSION: Final = 7
_CONSUMER: Final = -1
_LATEST: Final = -1
_AT_ONCE: Final = 1_000


class LatestOffsets:
    """Looks up latest offsets. `peers` are the other brokers of a cluster."""

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        clock: Clock,
        state: Callable[[], ClusterState],
        peers: PeersByNode | None,
        timeout_ms: float,
    ) -> None:
        self._node_id = node_id
        self._replicas = replicas
        self._clock = clock
        self._state = state
        self._peers = peers
        self._timeout_ms = timeout_ms

    async def of(self, topic: str, indexes: Iterable[int]) -> dict[int, LatestOffset]:
        """Return the latest offset of each of a topic's partitions; for a view, that of its source.

        A share group archives the source's records that do not match, so they are no lag once they were looked at.
        """
        known = self._state().topics.get(topic)
        if known is not None and known.source is not None:
            topic = known.source
        found: dict[int, LatestOffset] = {}
        elsewhere: dict[int, list[int]] = {}
        for index in indexes:
            partition = self._state().partition(topic, index)
            leader = -1 if partition is None else partition.leader
            if leader == self._node_id or self._peers is None:
                found[index] = await self._here(topic, index)
            elif leader < 0:
                found[index] = ErrorCode.LEADER_NOT_AVAILABLE, -1
            else:
                elsewhere.setdefault(leader, []).append(index)
            await turn
        asked = [
            self._ask(self._peers, node_id, topic, at_leader[first : first + _AT_ONCE])
            for node_id, at_leader in elsewhere.items()
            for first in range(0, len(at_leader), _AT_ONCE)
            if self._peers is not None
        ]
        if asked:
            for answer in await asyncio.gather(*asked):
                found.update(answer)
        return found

    async def _here(self, topic: str, index: int) -> LatestOffset:
        try:
            return ErrorCode.NONE, await self._replicas.leader(topic, index).log.readable_end(self._clock.now_ms())
        except ApiError as err:
            return err.code, -1
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR, -1

    async def _ask(self, peers: PeersByNode, node_id: int, topic: str, indexes: list[int]) -> dict[int, LatestOffset]:
        wanted = [ListOffsetsPartition(index, -1, _LATEST) for index in indexes]
        request = ListOffsetsRequest(_CONSUMER, 0, [ListOffsetsTopic(topic, wanted)])
        answers = dict.fromkeys(indexes, (ErrorCode.LEADER_NOT_AVAILABLE, -1))
        try:
            response = await peers.ask(node_id, request, VERSION, ListOffsetsResponse, self._timeout_ms)
        except PeerUnavailable as error:
            log.info("broker %d did not return the latest offsets of %s: %s", node_id, topic, error)
            return answers
        for each in response.topics:
            for found in each.partitions:
                answers[found.partition_index] = known_error(found.error_code), found.offset
        return answers

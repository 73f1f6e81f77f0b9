"""The latest offsets of partitions, whichever broker leads them.

The lag of share groups is computed from these offsets. Owns the requests to other brokers, one for each leader (Kafka:
NetworkPartitionMetadataClient). Never retries: an error is returned for the partition, and the client that describes
the group may retry.
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

_Key = tuple[str, int]
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
        """Return the latest offset of each of a topic's partitions. For a view, return the latest offset of its source.

        A share group archives the source's records that do not match the view. After the group has checked these
        records, they do not count as lag.
        """
        found = await self.of_all((topic, index) for index in indexes)
        return {index: latest for (_, index), latest in found.items()}

    async def of_all(self, keys: Iterable[_Key], timeout_ms: float | None = None) -> dict[_Key, LatestOffset]:
        """Return the latest offsets of partitions of any topics. Send the requests to all leaders at the same time.

        If a leader does not answer within `timeout_ms`, its partitions get an error. The default is the timeout of all
        requests between brokers.
        """
        found: dict[_Key, LatestOffset] = {}
        elsewhere: dict[int, list[_Key]] = {}
        shown: dict[_Key, list[_Key]] = {}
        """The requested partitions, by the partition that is looked up.

        For a partition of a view, the partition of its source is looked up.
        """
        for key in keys:
            topic, index = key
            known = self._state().topics.get(topic)
            if known is not None and known.source is not None:
                topic = known.source
            shown.setdefault((topic, index), []).append(key)
            await turn
        for key in shown:
            topic, index = key
            partition = self._state().partition(topic, index)
            leader = -1 if partition is None else partition.leader
            if leader == self._node_id or self._peers is None:
                found[key] = await self._here(topic, index)
            elif leader < 0:
                found[key] = ErrorCode.LEADER_NOT_AVAILABLE, -1
            else:
                elsewhere.setdefault(leader, []).append(key)
            await turn
        asked = [
            self._ask(self._peers, node_id, at_leader[first : first + _AT_ONCE], timeout_ms or self._timeout_ms)
            for node_id, at_leader in elsewhere.items()
            for first in range(0, len(at_leader), _AT_ONCE)
            if self._peers is not None
        ]
        if asked:
            for answer in await asyncio.gather(*asked):
                found.update(answer)
        return {key: found[place] for place, asking in shown.items() for key in asking}

    async def _here(self, topic: str, index: int) -> LatestOffset:
        try:
            return ErrorCode.NONE, await self._replicas.leader(topic, index).log.readable_end(self._clock.now_ms())
        except ApiError as err:
            return err.code, -1
        except OSError:
            return ErrorCode.KAFKA_STORAGE_ERROR, -1

    async def _ask(
        self, peers: PeersByNode, node_id: int, keys: list[_Key], timeout_ms: float
    ) -> dict[_Key, LatestOffset]:
        wanted: dict[str, list[ListOffsetsPartition]] = {}
        for topic, index in keys:
            wanted.setdefault(topic, []).append(ListOffsetsPartition(index, -1, _LATEST))
        request = ListOffsetsRequest(_CONSUMER, 0, [ListOffsetsTopic(topic, parts) for topic, parts in wanted.items()])
        answers = dict.fromkeys(keys, (ErrorCode.LEADER_NOT_AVAILABLE, -1))
        try:
            response = await peers.ask(node_id, request, VERSION, ListOffsetsResponse, timeout_ms)
        except PeerUnavailable as error:
            log.info("broker %d did not return the latest offsets of %s: %s", node_id, ", ".join(wanted), error)
            return answers
        for each in response.topics:
            for found in each.partitions:
                key = each.name, found.partition_index
                if key in answers:
                    answers[key] = known_error(found.error_code), found.offset
        return answers

"""Markers for partitions that other brokers lead.

Owns the batching of markers into requests (WriteTxnMarkers v1, which the brokers of Apache Kafka 3.9 use). Each broker
gets one request at a time; markers that are queued meanwhile are sent in the next request
(TransactionMarkerChannelManager). Never retries: each result is returned to the caller, which looks up the leader
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Final, NamedTuple

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.txn.marker_sender import Answers, Marker, Target
from kbroker.txn.transaction import TopicPartition

log = logging.getLogger(__name__)

VERSION: Final = 1
_AT_ONCE: Final = 500
"""The maximum number of partitions in a request.

Building such a request, or processing its response, blocks the event loop for a millisecond.
"""

_REQUESTS_AT_ONCE: Final = 20
"""The number of transactions whose results are delivered in one turn of the event loop."""


class _Queued(NamedTuple):
    marker: Marker
    answer: asyncio.Future[Answers]


class PeerMarkers:
    """The channel for markers to one other broker."""

    def __init__(self, node_id: int, by_node: PeersByNode, timeout_ms: float) -> None:
        self._node_id = node_id
        self._by_node = by_node
        self._timeout_ms = timeout_ms
        self._queue: deque[_Queued] = deque()
        self._sending: asyncio.Task[None] | None = None

    def write(self, marker: Marker) -> Awaitable[Answers]:
        """Send a marker; return an error code for each of its partitions, or NETWORK_EXCEPTION without a response."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answers] = loop.create_future()
        self._queue.append(_Queued(marker, answer))
        if self._sending is None:
            self._sending = loop.create_task(self._send_all(), name=f"markers to {self._node_id}")
        return answer

    def close(self) -> None:
        """Stop sending; waiting callers get no result."""
        self._queue.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        try:
            while self._queue:
                sent = self._take()
                if sent:
                    await _finish(sent, await self._send(sent))
        finally:
            self._sending = None

    def _take(self) -> list[_Queued]:
        """Remove the markers of one request from the queue, and return them.

        The response has one result per producer, so a second marker of a producer needs another request.
        """
        taken: list[_Queued] = []
        by_producer: dict[int, Marker] = {}
        partitions = 0
        while self._queue and partitions < _AT_ONCE:
            marker, answer = self._queue[0]
            known = by_producer.setdefault(marker.producer_id, marker)
            if known._replace(partitions=()) != marker._replace(partitions=()):
                break
            self._queue.popleft()
            if not answer.cancelled():
                taken.append(_Queued(marker, answer))
                partitions += len(marker.partitions)
        return taken

    async def _send(self, sent: list[_Queued]) -> dict[tuple[int, TopicPartition], ErrorCode]:
        request = _request(each.marker for each in sent)
        try:
            response = await self._by_node.ask(
                self._node_id, request, VERSION, WriteTxnMarkersResponse, self._timeout_ms
            )
        except PeerUnavailable as error:
            log.info("markers for broker %d were not answered: %s", self._node_id, error)
            return {}
        except Exception:
            # The waiting callers must retry, and later markers must be sent.
            log.exception("markers could not be sent to broker %d", self._node_id)
            return {}
        return {
            (marker.producer_id, (topic.name, partition.partition_index)): known_error(partition.error_code)
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }


class MarkerTargets:
    """The targets of markers by broker id: `here` for this broker, peers for the other brokers."""

    def __init__(self, node_id: int, here: Target, by_node: PeersByNode, timeout_ms: float) -> None:
        self._node_id = node_id
        self._here = here
        self._by_node = by_node
        self._timeout_ms = timeout_ms
        self._peers: dict[int, PeerMarkers] = {}

    def of(self, node_id: int) -> Target | None:
        """Return the target for a broker id; None if the broker is not known to be alive."""
        if node_id == self._node_id:
            return self._here
        if not self._by_node.knows(node_id):
            return None
        found = self._peers.get(node_id)
        if found is None:
            found = self._peers[node_id] = PeerMarkers(node_id, self._by_node, self._timeout_ms)
        return found

    def close(self) -> None:
        """Stop sending."""
        for peer in self._peers.values():
            peer.close()
        self._by_node.close()


def _request(markers: Iterable[Marker]) -> WriteTxnMarkersRequest:
    merged: dict[Marker, dict[str, list[int]]] = {}
    for marker in markers:
        topics = merged.setdefault(marker._replace(partitions=()), {})
        for topic, index in marker.partitions:
            topics.setdefault(topic, []).append(index)
    return WriteTxnMarkersRequest(
        [
            WritableTxnMarker(
                marker.producer_id,
                marker.producer_epoch,
                marker.commit,
                [WritableTxnMarkerTopic(name, indexes) for name, indexes in topics.items()],
                marker.coordinator_epoch,
            )
            for marker, topics in merged.items()
        ]
    )


async def _finish(sent: Iterable[_Queued], codes: dict[tuple[int, TopicPartition], ErrorCode]) -> None:
    """Deliver the codes, a few at a time: each code may complete a transaction and thus cause an append."""
    for number, (marker, answer) in enumerate(sent, 1):
        if number % _REQUESTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if not answer.done():
            unknown = ErrorCode.NETWORK_EXCEPTION
            answer.set_result({each: codes.get((marker.producer_id, each), unknown) for each in marker.partitions})

"""Markers for partitions that other brokers lead.

Owns how markers are put together into requests (WriteTxnMarkers v1, as the brokers of Apache Kafka 3.9 speak it), one
at a time to each broker; what comes meanwhile goes with the next (TransactionMarkerChannelManager). Never tries again:
whoever sends markers hears what became of each, and looks for the leader anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Final, NamedTuple

from kbroker.peers.by_node import PeersByNode
from kbroker.peers.interface import PeerGone
from kbroker.protocol.errors import ErrorCode
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
"""Partitions in a request: putting it together, and taking its answer, holds the loop for a millisecond."""

_TOLD_AT_ONCE: Final = 20
"""Transactions that hear of their markers before others have a turn."""


class _Queued(NamedTuple):
    marker: Marker
    answer: asyncio.Future[Answers]


class PeerMarkers:
    """The way of markers to one other broker."""

    def __init__(self, node_id: int, ways: PeersByNode, timeout_ms: float) -> None:
        self._node_id = node_id
        self._ways = ways
        self._timeout_ms = timeout_ms
        self._queue: deque[_Queued] = deque()
        self._sending: asyncio.Task[None] | None = None

    def write(self, marker: Marker) -> Awaitable[Answers]:
        """Have a marker written; an error code for each of its partitions, NETWORK_EXCEPTION if no answer came."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answers] = loop.create_future()
        self._queue.append(_Queued(marker, answer))
        if self._sending is None:
            self._sending = loop.create_task(self._send_all(), name=f"markers to {self._node_id}")
        return answer

    def close(self) -> None:
        """Send nothing more; nobody is told anything."""
        self._queue.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_all(self) -> None:
        try:
            while self._queue:
                sent = self._take()
                if sent:
                    await _tell(sent, await self._send(sent))
        finally:
            self._sending = None

    def _take(self) -> list[_Queued]:
        """Take what goes into one request. Its answer is by producer: one that has two markers has two requests."""
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
            response = await self._ways.ask(self._node_id, request, VERSION, WriteTxnMarkersResponse, self._timeout_ms)
        except PeerGone as gone:
            log.info("markers for broker %d were not answered: %s", self._node_id, gone)
            return {}
        except Exception:
            # Whoever waits is to try again, and what comes behind is to be sent.
            log.exception("markers could not be sent to broker %d", self._node_id)
            return {}
        return {
            (marker.producer_id, (topic.name, partition.partition_index)): _code(partition.error_code)
            for marker in response.markers
            for topic in marker.topics
            for partition in topic.partitions
        }


class MarkerTargets:
    """Who takes markers, by the id of the broker: `here` what this one leads, peers the rest."""

    def __init__(self, node_id: int, here: Target, ways: PeersByNode, timeout_ms: float) -> None:
        self._node_id = node_id
        self._here = here
        self._ways = ways
        self._timeout_ms = timeout_ms
        self._peers: dict[int, PeerMarkers] = {}

    def of(self, node_id: int) -> Target | None:
        """Return the broker of an id, None while it is not known to live."""
        if node_id == self._node_id:
            return self._here
        if not self._ways.knows(node_id):
            return None
        found = self._peers.get(node_id)
        if found is None:
            found = self._peers[node_id] = PeerMarkers(node_id, self._ways, self._timeout_ms)
        return found

    def close(self) -> None:
        """Send nothing more."""
        for peer in self._peers.values():
            peer.close()
        self._ways.close()


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


async def _tell(sent: Iterable[_Queued], codes: dict[tuple[int, TopicPartition], ErrorCode]) -> None:
    """Hand out the codes, some at a time: each may complete a transaction, which is written then."""
    for number, (marker, answer) in enumerate(sent, 1):
        if number % _TOLD_AT_ONCE == 0:
            await asyncio.sleep(0)
        if not answer.done():
            unknown = ErrorCode.NETWORK_EXCEPTION
            answer.set_result({each: codes.get((marker.producer_id, each), unknown) for each in marker.partitions})


def _code(number: int) -> ErrorCode:
    """Return an error by its number; a newer broker may have others."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR

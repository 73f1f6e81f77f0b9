"""What the brokers answered to the clients of a simulated cluster, and how each client sends requests.

Owns the book that all clients of a world share, and a client's connections to the brokers. The clients speak the
protocol over the brokers' own code for requests to each other (peers/connection.py), and retry every request that was
not answered. Never harms a broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kbroker.peers.connection import TcpPeer, TcpPeers
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kbroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tests.simulation.brokers import PORT
from tests.simulation.loop import Life, SimLoop
from tests.simulation.violation import Violation

TOPIC = "records"
PAIRED = "paired"
MOVED = "moved"
"""The topic's replicas are moved."""
LOOSE = "loose"
"""The topic loses records rather than being without a leader."""
FLEETING = "fleeting"
"""The topic is deleted and created again."""
PARTITIONS = 3
_ASK_MS = 4000
E = ErrorCode
AGAIN = frozenset(
    {
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.LEADER_NOT_AVAILABLE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.REQUEST_TIMED_OUT,
        E.BROKER_NOT_AVAILABLE,
        E.REPLICA_NOT_AVAILABLE,
        E.NETWORK_EXCEPTION,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.KAFKA_STORAGE_ERROR,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.CONCURRENT_TRANSACTIONS,
        E.NOT_CONTROLLER,
        E.UNSTABLE_OFFSET_COMMIT,
        E.INVALID_REPLICATION_FACTOR,
        E.UNKNOWN_TOPIC_ID,
    }
)


@dataclass
class Book:
    """What the brokers answered to the clients of a world."""

    now_ms: Any
    judge: Any
    """Receives what was acknowledged and what was read: Invariants."""
    over: bool = False
    """Whether producers must finish."""
    finished: bool = False
    """Whether consumers must finish."""
    counts: Counter[str] = field(default_factory=Counter)
    acked: dict[tuple[str, int, str], dict[int, int]] = field(default_factory=dict)
    """(topic, partition, producer) -> number -> offset, or -1 if the response did not contain it."""
    read: dict[int, int] = field(default_factory=dict)
    """Partition -> the offset up to which a consumer has read."""
    transactions: dict[int, str] = field(default_factory=dict)
    """Number -> the transaction's outcome, as far as its producer knows."""


class Client:
    """One client: its connections to the brokers, and the leaders that it knows."""

    def __init__(self, loop: SimLoop, random: Random, book: Book, name: str, brokers: list[int]) -> None:
        self.loop, self.random, self.book, self.name = loop, random, book, name
        self.life = Life(name, 1)
        self._brokers = brokers
        self._peers: dict[int, TcpPeer] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self.coordinator = -1
        self.trouble = ""
        """Why its last request failed."""

    def begin(self) -> asyncio.Task[None]:
        return self.loop.create_task(self.work(), context=self.life.context)

    async def work(self) -> None:
        raise NotImplementedError

    async def ask(self, broker: int, request: Any, version: int, answer: Any, timeout_ms: float = _ASK_MS) -> Any:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = TcpPeers().peer(f"broker{broker}", PORT, self.name)
        try:
            return await peer.ask(request, version, answer, timeout_ms)
        except PeerUnavailable as gone:
            self.trouble = f"{self.loop.time():.3f} {type(request).__name__} to {broker}: {gone}"
            raise

    async def rest(self, seconds: float = 0.1) -> None:
        await asyncio.sleep(self.random.uniform(0.2, 1) * seconds)

    async def refresh(self, topic: str) -> None:
        """Ask some broker for the leaders."""
        request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        try:
            found = await self.ask(self.random.choice(self._brokers), request, 9, MetadataResponse)
        except PeerUnavailable:
            await self.rest()
            return
        for each in found.topics[0].partitions:
            key = topic, each.partition_index
            if each.leader_epoch >= self._epochs.get(key, -1):  # as in Java's clients: older leader epochs are ignored
                self.leaders[key], self._epochs[key] = each.leader_id, each.leader_epoch
        await self.rest()

    async def of_leader(self, topic: str, index: int, request: Any, version: int, answer: Any) -> Any:
        """Send a request to a partition's leader once; return None if there is no result."""
        leader = self.leaders.get((topic, index), -1)
        if leader < 0:
            await self.refresh(topic)
            return None
        try:
            return await self.ask(leader, request, version, answer)
        except PeerUnavailable:
            self.leaders.pop((topic, index), None)
            await self.rest()
            return None

    async def of_coordinator(self, key: str, kind: int, request: Any, version: int, answer: Any) -> Any:
        """Send a request to a coordinator once; return None if there is no result."""
        try:
            if self.coordinator < 0:
                asked = FindCoordinatorRequest(key=key, key_type=kind)
                found = await self.ask(self.random.choice(self._brokers), asked, 3, FindCoordinatorResponse)
                if found.error_code:
                    self.expect_again(found.error_code, "FindCoordinator")
                    await self.rest()
                    return None
                self.coordinator = found.node_id
            return await self.ask(self.coordinator, request, version, answer)
        except PeerUnavailable:
            self.coordinator = -1
            await self.rest()
            return None

    def expect_again(self, code: int, what: str) -> None:
        """Raise Violation for an error that a healthy client must never receive."""
        if code not in AGAIN:
            raise Violation(f"{self.name}: {what} was answered {ErrorCode(code).name}")
        self.trouble = f"{self.loop.time():.3f} {what}: {ErrorCode(code).name}"
        self.book.counts[f"told {ErrorCode(code).name}"] += 1

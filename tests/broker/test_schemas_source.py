"""The requests to the leader of `_schemas`, and the meaning of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.schemas_source import SchemasSource
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.controller.tree.memory import MemoryEnsemble, MemoryTree
from kbroker.controller.tree.znode import Create, SetData, ensure
from kbroker.controller.znodes import LeaderAndIsr, state_path
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from kbroker.protocol.messages.logs import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kbroker.record_checks.followed_schemas import Piece, Place, Unread
from kbroker.schema_registry.errors import Refusal

TOPIC = "_schemas"
ID = b"i" * 16
PLACE = Place(2, 7, ID)
E = ErrorCode


class Leader:
    """Broker 2, which returns the answers that the test sets."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.asked: list[tuple[int, int, Any]] = []

    async def ask(self, node_id: int, request: Any, version: int, answer: Any, _timeout_ms: float) -> Any:
        self.asked.append((node_id, version, decode(type(request), version, encode(request, version))))
        if self.answer is None:
            raise PeerUnavailable("it is frozen")
        return decode(answer, version, encode(self.answer, version))

    def offsets(self, code: int, offset: int) -> None:
        parts = [ListOffsetsPartitionResponse(0, code, offset=offset)]
        self.answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(TOPIC, parts)])

    def records(self, code: int = 0, throttle_ms: int = 0, **more: Any) -> None:
        data = PartitionData(0, code, 12, aborted_transactions=None, **{"records": b"", **more})
        self.answer = FetchResponse(throttle_time_ms=throttle_ms, responses=[FetchableTopicResponse(TOPIC, ID, [data])])


class World:
    def __init__(self) -> None:
        self.leader = Leader()
        self.tree: MemoryTree = MemoryEnsemble().connect()
        self.state = ClusterState("c")
        self.created = 0
        metadata: Any = SimpleNamespace(state=self.state)
        leader: Any = self.leader
        self.source = SchemasSource(1, self.tree, metadata, leader, leader, self.create)
        self.metadata = metadata

    async def create(self) -> None:
        self.created += 1
        if self.created > 1:
            raise Refusal.STORE_FAILED("it has 2 partitions")

    def lead(self, leader: int, epoch: int) -> None:
        partition = PartitionState((2, 1), (2, 1), leader, epoch)
        self.metadata.state = self.state.with_topic(TopicState(TOPIC, ID, (partition,)))


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(World())

    asyncio.run(main())


def test_the_place_is_that_of_the_metadata() -> None:
    async def scenario(world: World) -> None:
        assert world.source.place() is None
        world.lead(-1, 6)
        assert world.source.place() is None
        world.lead(2, 7)
        assert world.source.place() == PLACE
        assert not world.source.is_here(PLACE)
        assert world.source.is_here(Place(1, 8, ID))
        await world.source.provide()
        with pytest.raises(Unread, match="it has 2 partitions"):
            await world.source.provide()

    run(scenario)


def test_the_end_is_the_leaders_of_this_epoch() -> None:
    async def scenario(world: World) -> None:
        world.leader.offsets(0, 12)
        assert await world.source.end(PLACE) == 12
        (node_id, _, request) = world.leader.asked[-1]
        assert isinstance(request, ListOffsetsRequest)
        wanted = request.topics[0].partitions[0]
        assert (node_id, wanted.current_leader_epoch, wanted.timestamp, request.isolation_level) == (2, 7, -1, 0)
        world.leader.offsets(0, 3)
        assert await world.source.begin(PLACE) == 3
        assert world.leader.asked[-1][2].topics[0].partitions[0].timestamp == -2
        for code in (E.OFFSET_NOT_AVAILABLE, E.FENCED_LEADER_EPOCH, E.TOPIC_AUTHORIZATION_FAILED):
            world.leader.offsets(code, -1)
            with pytest.raises(Unread, match=f"broker 2, which leads _schemas: {code.name}"):
                await world.source.end(PLACE)
        world.leader.answer = ListOffsetsResponse()
        with pytest.raises(Unread, match="UNKNOWN_SERVER_ERROR"):
            await world.source.end(PLACE)
        world.leader.answer = None
        with pytest.raises(Unread, match="it is frozen"):
            await world.source.end(PLACE)

    run(scenario)


def test_records_are_read_as_a_consumer_does() -> None:
    async def scenario(world: World) -> None:
        world.leader.records(records=b"records")
        piece = await world.source.read(PLACE, 5, 6, 500)
        assert piece == Piece(memoryview(b"records"), 12)
        (node_id, version, request) = world.leader.asked[-1]
        assert isinstance(request, FetchRequest)
        assert (node_id, version, request.replica_id, request.max_wait_ms, request.min_bytes) == (2, 13, -1, 500, 1)
        wanted = request.topics[0].partitions[0]
        assert (request.topics[0].topic_id, wanted.fetch_offset, wanted.last_fetched_epoch) == (ID, 5, 6)
        assert wanted.current_leader_epoch == 7
        await world.source.read(Place(2, 7, bytes(16)), 5, 6, 500)
        assert world.leader.asked[-1][1] == 12
        assert world.leader.asked[-1][2].topics[0].topic == TOPIC

    run(scenario)


def test_what_answers_to_a_fetch_mean() -> None:
    async def scenario(world: World) -> None:
        world.leader.records(E.OFFSET_OUT_OF_RANGE)
        assert (await world.source.read(PLACE, 5, 6, 0)).is_elsewhere
        world.leader.records(diverging_epoch=EpochEndOffset(5, 4))
        assert (await world.source.read(PLACE, 5, 6, 0)).is_elsewhere
        world.leader.records(throttle_ms=100)
        assert (await world.source.read(PLACE, 5, 6, 0)).is_throttled
        world.leader.answer = FetchResponse(throttle_time_ms=100)
        assert (await world.source.read(PLACE, 5, 6, 0)).is_throttled
        for code in (E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID, E.KAFKA_STORAGE_ERROR):
            world.leader.records(code)
            with pytest.raises(Unread, match=code.name):
                await world.source.read(PLACE, 5, 6, 0)
        world.leader.answer = FetchResponse()
        with pytest.raises(Unread):
            await world.source.read(PLACE, 5, 6, 0)
        world.leader.answer = None
        with pytest.raises(Unread, match="it is frozen"):
            await world.source.read(PLACE, 5, 6, 0)

    run(scenario)


def test_zookeeper_confirms_the_leader() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Unread, match="it leads no more"):
            await world.source.confirm(PLACE)
        path = state_path(TOPIC, 0)
        parts = path.split("/")
        for depth in range(2, len(parts)):
            await ensure(world.tree, "/".join(parts[:depth]))
        await world.tree.commit([Create(path, LeaderAndIsr(2, 7, (2, 1), 1).encode())])
        await world.source.confirm(PLACE)
        await world.tree.commit([SetData(path, LeaderAndIsr(1, 8, (1,), 1).encode())])
        with pytest.raises(Unread, match="it leads no more"):
            await world.source.confirm(PLACE)
        await world.tree.commit([SetData(path, b"{")])
        with pytest.raises(Unread, match="ZooKeeper did not return the leader of _schemas"):
            await world.source.confirm(PLACE)
        await world.tree.close()
        with pytest.raises(Unread, match="ZooKeeper did not return the leader of _schemas"):
            await world.source.confirm(PLACE)

    run(scenario)

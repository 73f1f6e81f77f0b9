"""The broker's own batches for partitions that other brokers lead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

from kbroker.broker.own_produce import PeerPool, ProduceAnywhere, ProduceHere
from kbroker.peers.connection import TcpPeer
from kbroker.peers.interface import PeersByNode
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kbroker.protocol.records import build_batch
from tests.coordination.world import ManualClock
from tests.peers.memory import MemoryPeers

BATCH = bytearray(build_batch([(1_700_000_000_000, None, b"v", ())]))
WHERE = {2: ("two", 9)}
LEADERS = {("t", 0): 1, ("t", 1): 2, ("t", 2): 3, ("t", 3): -1}


class Here(ProduceHere):
    def __init__(self) -> None:
        self.got: list[tuple[str, int, bytes]] = []

    async def produce(self, topic: str, index: int, batch: bytearray, topic_id: bytes | None = None) -> ErrorCode:
        assert topic_id is None
        self.got.append((topic, index, batch))
        return ErrorCode.NONE


def run(scenario: Callable[[MemoryPeers, Here, ProduceAnywhere], Awaitable[None]]) -> None:
    async def there() -> None:
        net, here = MemoryPeers(), Here()
        anywhere = ProduceAnywhere(1, here, LEADERS.get, PeersByNode(net, WHERE.get, "broker-1-letters"))
        await scenario(net, here, anywhere)

    asyncio.run(there())


def test_what_this_broker_leads_stays_here() -> None:
    async def scenario(net: MemoryPeers, here: Here, anywhere: ProduceAnywhere) -> None:
        assert await anywhere.produce("t", 0, BATCH) == ErrorCode.NONE
        assert here.got == [("t", 0, BATCH)]
        assert net.pending == []

    run(scenario)


def test_another_leader_is_asked_and_its_answer_counts() -> None:
    async def scenario(net: MemoryPeers, _here: Here, anywhere: ProduceAnywhere) -> None:
        for code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.MESSAGE_TOO_LARGE):
            produced = asyncio.ensure_future(anywhere.produce("t", 1, BATCH))
            asked = await net.next()
            assert asked.endpoint == WHERE[2]
            assert (asked.request.acks, asked.request.timeout_ms) == (-1, 30_000)
            [topic] = asked.request.topic_data
            assert (topic.name, topic.partition_data[0].index) == ("t", 1)
            assert bytes(topic.partition_data[0].records) == BATCH
            partition: Any = PartitionProduceResponse(1, code, 5)
            asked.answer(ProduceResponse([TopicProduceResponse("t", partition_responses=[partition])]))
            assert await produced == code

    run(scenario)


def test_no_leader_a_lost_answer_and_one_about_something_else() -> None:
    async def scenario(net: MemoryPeers, _here: Here, anywhere: ProduceAnywhere) -> None:
        assert await anywhere.produce("t", 2, BATCH) == ErrorCode.NETWORK_EXCEPTION, "its address is not known"
        assert await anywhere.produce("t", 3, BATCH) == ErrorCode.NETWORK_EXCEPTION
        assert await anywhere.produce("none", 0, BATCH) == ErrorCode.NETWORK_EXCEPTION
        lost = asyncio.ensure_future(anywhere.produce("t", 1, BATCH))
        (await net.next()).lose()
        assert await lost == ErrorCode.NETWORK_EXCEPTION
        odd = asyncio.ensure_future(anywhere.produce("t", 1, BATCH))
        (await net.next()).answer(ProduceResponse([]))
        assert await odd == ErrorCode.UNKNOWN_SERVER_ERROR

    run(scenario)


def test_with_a_topic_id_the_leader_looks_at_it() -> None:
    async def scenario(net: MemoryPeers, _here: Here, anywhere: ProduceAnywhere) -> None:
        for code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
            produced = asyncio.ensure_future(anywhere.produce("t", 1, BATCH, b"i" * 16))
            asked = await net.next()
            assert asked.version == 13
            assert asked.request.topic_data[0].topic_id == b"i" * 16
            partition: Any = PartitionProduceResponse(1, code, 5)
            asked.answer(ProduceResponse([TopicProduceResponse("", b"i" * 16, [partition])]))
            assert await produced == code

    run(scenario)


def test_here_another_topic_of_the_name_gets_nothing() -> None:
    async def hosted_of(_: str) -> None:
        pass

    leader = SimpleNamespace(topic_id=b"j" * 16)  # it has no append
    replicas: Any = SimpleNamespace(hosted_of=hosted_of, leader=lambda *_: leader)
    produced = ProduceHere(replicas, ManualClock()).produce("t", 0, BATCH, b"i" * 16)
    assert asyncio.run(produced) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_pool_asks_by_the_connection_with_the_fewest_requests() -> None:
    async def scenario() -> None:
        nets = [MemoryPeers(), MemoryPeers()]
        pool = PeerPool([PeersByNode(net, WHERE.get, "broker-1") for net in nets])
        asking = [asyncio.ensure_future(pool.ask(2, ProduceRequest(), 9, ProduceResponse, 1000)) for _ in range(4)]
        first = [await net.next() for net in nets]
        assert [asked.endpoint for asked in first] == [WHERE[2], WHERE[2]]
        first[1].answer(ProduceResponse([]))
        second = await nets[1].next()
        for asked in (second, first[0], await nets[0].next()):
            asked.answer(ProduceResponse([]))
        await asyncio.gather(*asking)

    asyncio.run(scenario())


def test_a_batch_is_not_copied() -> None:
    """A batch may have 50 MB, and each copy of it would block the loop."""
    batch = bytearray(BATCH)
    got: list[object] = []

    def append(records: object, *_: object, **__: object) -> SimpleNamespace:
        got.append(records)
        return SimpleNamespace(last_offset=0)

    async def hosted_of(_: str) -> None:
        pass

    leader = SimpleNamespace(append=append, log=SimpleNamespace(high_watermark=1))
    replicas: Any = SimpleNamespace(hosted_of=hosted_of, leader=lambda *_: leader)
    assert asyncio.run(ProduceHere(replicas, ManualClock()).produce("t", 0, batch)) == ErrorCode.NONE
    assert got[0] is batch
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(0, batch)])
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[data])
    frame = TcpPeer("127.0.0.1", 1, "broker-1")._framed(request, 9)
    assert any(part is batch for part in frame)
    assert b"".join(frame[1:]).endswith(encode(request, 9))
    assert int.from_bytes(frame[0], "big") == sum(map(len, frame[1:]))

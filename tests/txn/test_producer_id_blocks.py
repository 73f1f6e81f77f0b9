"""Producer ids from blocks of the controller: each id is given once, and blocks are requested ahead of time."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.peers.interface import PeersByNode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import AllocateProducerIdsResponse
from kbroker.txn.producer_ids import RETRY_MS, ProducerIdBlocks
from tests.coordination.world import ManualClock
from tests.peers.memory import MemoryPeers, turns


class Context:
    def __init__(self) -> None:
        self.net = MemoryPeers()
        self.clock = ManualClock()
        self.controller = 3
        self.epoch = 77
        where = {3: ("three", 9), 4: ("four", 9)}
        self.ids = ProducerIdBlocks(
            1,
            lambda: self.epoch,
            lambda: self.controller,
            PeersByNode(self.net, where.get, "to-controller"),
            self.clock,
            30_000,
        )

    def refused(self) -> bool:
        """Whether a request for an id is refused with COORDINATOR_LOAD_IN_PROGRESS."""
        with pytest.raises(ApiError) as caught:
            self.ids.next()
        return caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def give(self, first: int, count: int = 1000, error: int = 0) -> None:
        asked = await self.net.next()
        asked.answer(AllocateProducerIdsResponse(error_code=error, producer_id_start=first, producer_id_len=count))
        await turns()

    def take(self, count: int) -> list[int]:
        return [self.ids.next() for _ in range(count)]


def test_the_first_id_is_to_be_asked_for_again() -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        assert context.refused()
        asked = await context.net.next()
        assert (asked.endpoint, asked.version) == (("three", 9), 0)
        assert (asked.request.broker_id, asked.request.broker_epoch) == (1, 77)
        await turns()
        assert context.net.pending == []
        asked.answer(AllocateProducerIdsResponse(producer_id_start=5000, producer_id_len=1000))
        await turns()
        assert context.take(3) == [5000, 5001, 5002]

    asyncio.run(scenario())


def test_the_next_block_is_asked_for_when_nine_tenths_are_used() -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        await context.give(0)
        assert context.take(900) == list(range(900))
        await turns()
        assert context.net.pending == []
        assert context.take(1) == [900]
        await context.give(7000)
        assert context.take(100) == [*range(901, 1000), 7000]
        await turns()
        assert context.net.pending == []

    asyncio.run(scenario())


def test_while_the_next_block_is_on_its_way_this_one_is_used_up() -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        await context.give(0, 10)
        assert context.take(10) == list(range(10))
        assert context.refused()
        await context.give(10, 10)
        assert context.take(1) == [10]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "error", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.NOT_CONTROLLER, 9999]
)
def test_a_refusal_is_asked_again_a_moment_later_and_at_who_is_controller_then(error: int) -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        await context.give(-1, 0, error)
        assert context.refused()
        await turns()
        assert context.net.pending == []
        context.clock.ms += RETRY_MS
        context.controller, context.epoch = 4, 78
        assert context.refused()
        asked = await context.net.next()
        assert (asked.endpoint, asked.request.broker_epoch) == (("four", 9), 78)

    asyncio.run(scenario())


def test_a_controller_that_does_not_answer_is_waited_for_until_there_is_another() -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        frozen = await context.net.next()
        for context.controller in (3, -1):
            assert context.refused()
            await turns()
            assert context.net.pending == []
        context.controller = 4
        assert context.refused()
        asked = await context.net.next()
        assert (frozen.endpoint, asked.endpoint) == (("three", 9), ("four", 9))
        assert context.refused()
        await turns()
        assert context.net.pending == [], "it is asked once"
        asked.answer(AllocateProducerIdsResponse(error_code=0, producer_id_start=5000, producer_id_len=1000))
        await turns()
        assert context.take(2) == [5000, 5001]

    asyncio.run(scenario())


def test_without_an_answer_or_a_controller_nothing_is_given() -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        (await context.net.next()).lose()
        await turns()
        context.clock.ms += RETRY_MS
        context.controller = -1
        assert context.refused()
        await turns()
        assert context.net.pending == []
        context.clock.ms += RETRY_MS
        context.controller = 4
        assert context.refused()
        await context.give(0)
        assert context.take(1) == [0]

    asyncio.run(scenario())


@pytest.mark.parametrize(("first", "count"), [(-1, 1000), (0, 0), (0, -5), (2**63 - 10, 1000), (950, 1000)])
def test_blocks_that_cannot_be_are_not_used(first: int, count: int) -> None:
    async def scenario() -> None:
        context = Context()
        assert context.refused()
        await context.give(0)
        context.take(901)
        await context.give(first, count)
        assert context.take(99) == list(range(901, 1000))
        context.clock.ms += RETRY_MS
        assert context.refused()
        await context.give(1000)
        assert context.take(1) == [1000]

    asyncio.run(scenario())

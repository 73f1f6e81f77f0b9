"""Requests to brokers by id, wherever the brokers are."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse

from .memory import MemoryPeers


def test_a_broker_that_moves_is_asked_where_it_is() -> None:
    async def scenario() -> None:
        net, where = MemoryPeers(), {1: ("a", 1)}
        ways = PeersByNode(net, where.get, "me")

        def ask() -> asyncio.Task[ApiVersionsResponse]:
            return asyncio.ensure_future(ways.ask(1, ApiVersionsRequest(), 0, ApiVersionsResponse, 1000))

        first, second = ask(), ask()
        for _ in range(2):
            asked = await net.next()
            assert (asked.endpoint, asked.client_id, asked.timeout_ms) == (("a", 1), "me", 1000)
            asked.answer(ApiVersionsResponse())
        await asyncio.gather(first, second)
        assert net.closed == []
        waiting = ask()
        await net.next()
        where[1] = ("b", 2)
        moved = ask()
        asked = await net.next()
        assert asked.endpoint == ("b", 2)
        assert net.closed == [("a", 1)]
        with pytest.raises(PeerUnavailable):
            await waiting
        asked.answer(ApiVersionsResponse())
        await moved
        del where[1]
        assert not ways.knows(1)
        with pytest.raises(PeerUnavailable, match="broker 1 is not known to live"):
            await ask()
        assert net.closed == [("a", 1), ("b", 2)]

    asyncio.run(scenario())

"""A connection to another broker: responses in order, and a missing response is an error."""

from __future__ import annotations

import asyncio
import gc
import struct
from contextlib import asynccontextmanager

import pytest

from kbroker import Broker
from kbroker.network.loop_watch import new_event_loop
from kbroker.peers.connection import TcpPeers
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse

PATIENCE_MS = 10_000


def run(asked):
    """Run on the kind of loop that a broker uses."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asked)


def address_of(broker):
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host.strip("[]"), int(port)


@asynccontextmanager
async def serving(serve):
    handlers = set()

    async def handle(reader, writer):
        handlers.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except ConnectionResetError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    peer = TcpPeers().peer("127.0.0.1", server.sockets[0].getsockname()[1], "test")
    try:
        yield peer
    finally:
        peer.close()
        server.close()
        if handlers:
            await asyncio.wait(handlers, timeout=10)


def test_many_questions_at_once_are_answered_each_with_its_own():
    with Broker() as broker:

        async def ask():
            peer = TcpPeers().peer(*address_of(broker), "test")
            try:
                return await asyncio.gather(
                    *(peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS) for _ in range(10)),
                    peer.ask(MetadataRequest(topics=[]), 12, MetadataResponse, PATIENCE_MS),
                )
            finally:
                peer.close()

        *versions, metadata = run(ask())
        assert all(each.api_keys for each in versions)
        assert [each.node_id for each in metadata.brokers] == [broker.node.node_id]


def test_a_broker_that_is_not_there():
    async def ask():
        async with serving(lambda _reader, _writer: None) as peer:
            pass
        with pytest.raises(PeerUnavailable):
            await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)

    run(ask())


def test_no_answer_in_time_ends_the_connection_and_the_next_question_has_another():
    connections = []

    async def silent_at_first(reader, writer):
        connections.append(writer)
        length = struct.unpack(">i", await reader.readexactly(4))[0]
        frame = await reader.readexactly(length)
        if len(connections) > 1:
            body = frame[4:8] + bytes(2 + 4)
            writer.write(struct.pack(">i", len(body)) + body)
        await reader.read()

    async def ask():
        async with serving(silent_at_first) as peer:
            with pytest.raises(PeerUnavailable):
                await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, 50)
            return await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)

    assert run(ask()).api_keys == []
    assert len(connections) == 2


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", 1 << 30),
        struct.pack(">ii", 4, 77),
        struct.pack(">iihi", 10, 1, 0, 1000),
        struct.pack(">i", -1),
    ],
)
def test_what_cannot_be_an_answer(frame):
    async def nonsense(reader, writer):
        await reader.read(4)
        writer.write(frame)
        await reader.read()

    async def ask():
        async with serving(nonsense) as peer:
            with pytest.raises(PeerUnavailable):
                await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)

    run(ask())


def test_closing_tells_who_waits():
    async def silent(reader, writer):
        await reader.read()

    async def ask():
        async with serving(silent) as peer:
            asked = asyncio.create_task(peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS))
            await asyncio.sleep(0)
            peer.close()
            with pytest.raises(PeerUnavailable):
                await asked
            with pytest.raises(PeerUnavailable):
                await peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS)

    run(ask())


def test_who_is_cancelled_while_the_connection_is_made_stays_so():
    """Closing also ends the wait for the connection; a task that mistook that for an answer would continue."""

    async def ask():
        async with serving(lambda _reader, writer: writer.wait_closed()) as peer:
            asking = asyncio.create_task(peer.ask(ApiVersionsRequest(), 0, ApiVersionsResponse, PATIENCE_MS))
            await asyncio.sleep(0)
            asking.cancel()
            peer.close()
            await asyncio.wait([asking], timeout=10)
            return asking.cancelled()

    assert run(ask())


def test_a_way_that_fails_when_nobody_waits_for_it_any_more_is_no_news(monkeypatch):
    async def ask():
        loop, refused, told = asyncio.get_running_loop(), asyncio.Event(), []
        loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))

        async def slow(*_, **__):
            await refused.wait()
            raise ConnectionRefusedError

        monkeypatch.setattr(loop, "create_connection", slow)
        peer = TcpPeers().peer("127.0.0.1", 1, "test")
        with pytest.raises(PeerUnavailable):
            await peer.ask(MetadataRequest(), 12, MetadataResponse, 20)
        refused.set()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        assert told == []

    asyncio.run(ask())

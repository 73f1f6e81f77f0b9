"""Many connections, each with requests of every kind in pieces of any size, where turns are mostly used up."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from kbroker.long_work import turn
from kbroker.network import connection as connection_module
from kbroker.network import outbox as outbox_module
from kbroker.network import turns as turns_module
from kbroker.network.connection import Connection
from tests.network.test_connection_states import DEADLINE, Client, Long, Server, framed
from tests.tries import tries


class Echo(Server):
    """Answers each frame with itself: immediately, in steps, after a wait, or with more than a socket accepts."""

    def entrance(self, _context, frame, out, _spill):
        kind, body = bytes(frame[:1]), bytes(frame)
        if kind == b"s":
            return Long(self._in_steps(body))
        if kind == b"w":
            return Long(self._later(body))
        if kind == b"l":
            body = body * 2_000
        out += framed(body)
        return None

    async def _in_steps(self, body):
        for _ in range(len(body)):
            await turn
        return bytearray(framed(body)), []

    async def _later(self, body):
        await asyncio.sleep(0)
        return bytearray(framed(body)), []


def requests_of(rng):
    for _ in range(rng.randrange(1, 60)):
        kind = rng.choice([b"e", b"e", b"e", b"s", b"w", b"l"])
        size = rng.choice([0, 10, 200]) if kind != b"e" else rng.choice([0, 10, 5_000, 60_000, 200_000])
        yield kind + bytes([rng.randrange(256)]) * size


async def talk(rng, client, asked):
    """Send everything, in pieces, and check that each response is in its place."""
    loop = asyncio.get_running_loop()

    async def send():
        data = framed(*asked)
        while data:
            size = rng.choice([1, 3, 100, 30_000, 300_000])
            await loop.sock_sendall(client.sock, data[:size])
            data = data[size:]
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    sending = asyncio.ensure_future(send())
    expected = framed(*(body * 2_000 if body[:1] == b"l" else body for body in asked))
    got = 0
    while got < len(expected):
        data = await loop.sock_recv(client.sock, rng.choice([100, 10_000, 1 << 20]))
        assert data
        assert expected.startswith(data, got), "answers in order"
        got += len(data)
    await sending


@pytest.mark.long
@pytest.mark.parametrize("seed", range(tries(12)))
def test_every_request_is_answered_in_its_place(monkeypatch, seed):
    print("seed", seed)
    rng = random.Random(seed)
    short = rng.choice([0.000_005, 0.000_05, 0.000_5])
    for module in (turns_module, connection_module, outbox_module):
        for name, value in {"SLICE": short / 4, "TURN": short, "LONG": short / 8, "NOTED": short / 2}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)

    async def story():
        server = Echo()
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(12)]
        connections, talks = [], []
        for number, (ours, theirs) in enumerate(pairs):
            ours.setblocking(False)
            connections.append(Connection(server, loop, ours, f"10.0.0.7:{number}"))
            asked = [body for _ in range(3) for body in requests_of(rng)]
            talks.append(talk(random.Random(rng.random()), Client(theirs), asked))
        await asyncio.wait_for(asyncio.gather(*talks), 6 * DEADLINE)
        assert not [each.state for each in connections if each.state is not connection_module.State.SERVING]
        assert server.memory.used == 0
        for each in connections:
            each.abort()
        for _, theirs in pairs:
            theirs.close()

    asyncio.run(story())

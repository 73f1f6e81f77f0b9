"""Sockets of HTTP servers."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kbroker.local_http import listening


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_answer_is_sent_at_once(host):
    """Head and body are written separately; without TCP_NODELAY, the body waits for the client's acknowledgement."""

    async def scenario():
        accepted = asyncio.get_running_loop().create_future()

        class Seen(asyncio.Protocol):
            def connection_made(self, transport):
                accepted.set_result(transport.get_extra_info("socket"))

        server = await asyncio.get_running_loop().create_server(
            Seen, sock=listening(host, 0, "--here", not_public=None)
        )
        async with server:
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            seen = await asyncio.wait_for(accepted, 10)
            assert seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()

    asyncio.run(scenario())

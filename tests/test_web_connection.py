"""How a connection notices unread data; over TLS, two transports have a buffer each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from typing import Final
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from kbroker import web_connection
from kbroker.embed_security import Certificates
from kbroker.local_http import REGISTRY
from kbroker.web_connection import TimedH11Connection
from kbroker.web_server import WebServer
from tests import unread
from tests.unread import Lost

PIECE: Final = 100_000
REQUEST: Final = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def two_pieces(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for more in (True, False):
        await send({"type": "http.response.body", "body": b"a" * PIECE, "more_body": more})


def served(app: ASGIApp, tls: tuple[str, str] | None = None) -> WebServer:
    return WebServer(
        app,
        REGISTRY.listening("127.0.0.1", 0, "--listen", public=False),
        "pieces",
        logging.getLogger(__name__),
        lambda: None,
        protocol=TimedH11Connection,
        connections=10,
        largest_head=1_000,
        tls=tls,
    )


def test_who_reads_slowly_over_tls_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece waits until the client has read most of the first one, which takes longer than the limit."""
    Lost(monkeypatch)  # makes the kernel's buffers small
    monkeypatch.setattr(web_connection, "READER_S", 2.0)
    certificates = Certificates("127.0.0.1")
    context = ssl.create_default_context(cafile=certificates.ca)
    both = certificates.settings["ssl.keystore.location"]
    try:
        with (
            served(two_pieces, (both, both)) as server,
            context.wrap_socket(unread.connected(server.url), server_hostname="127.0.0.1") as client,
        ):
            client.sendall(REQUEST)
            read = 0
            while piece := client.recv(1_000 if read < PIECE else 65_536):
                read += len(piece)
                if read < PIECE:
                    time.sleep(0.03)  # so slow is the reader
    finally:
        certificates.remove()
    assert read > 2 * PIECE


async def many_pieces(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for more in range(100, -1, -1):
        await send({"type": "http.response.body", "body": b"a" * PIECE, "more_body": more > 0})


@pytest.mark.long
def test_who_reads_less_than_the_kernel_keeps_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "READER_S", 2.0)
    with served(many_pieces) as server:
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port), timeout=20) as client:
            client.sendall(REQUEST)
            slow_until = time.monotonic() + 4.5
            read = 0
            while piece := client.recv(20_000 if time.monotonic() < slow_until else 1_000_000):
                read += len(piece)
                if time.monotonic() < slow_until:
                    time.sleep(0.05)  # so slow is the reader
    assert read > 100 * PIECE


def test_a_single_byte_that_is_not_read_is_noticed() -> None:
    async def is_noticed(ours: socket.socket) -> bool:
        ours.setblocking(False)
        for size in (65_536, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(b"x" * size)
        config = uvicorn.Config(two_pieces, log_config=None, lifespan="off")
        transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: TimedH11Connection(config=config, server_state=ServerState(), app_state={}), sock=ours
        )
        transport.write(b"x")
        noticed = connection.flow.write_paused
        transport.abort()
        return noticed

    ours, theirs = socket.socketpair()
    with theirs:
        assert asyncio.run(is_noticed(ours))

"""Clients of HTTP that leave answers unread, or read slowly, while the kernel keeps little for them."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from kbroker.web_connection import TimedConnection

_KEPT = 4096


class Lost:
    """The clients whose connections the servers of this process have lost; the kernel keeps little for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._addresses = set[object]()
        made = dict[TimedConnection, object]()
        begin, end = TimedConnection.connection_made, TimedConnection.connection_lost

        def connection_made(connection: TimedConnection, transport: asyncio.BaseTransport) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KEPT)
            made[connection] = transport.get_extra_info("peername")
            begin(connection, transport)

        def connection_lost(connection: TimedConnection, exc: Exception | None) -> None:
            end(connection, exc)
            self._addresses.add(made.pop(connection, None))

        monkeypatch.setattr(TimedConnection, "connection_made", connection_made)
        monkeypatch.setattr(TimedConnection, "connection_lost", connection_lost)

    def __contains__(self, client: socket.socket) -> bool:
        return client.getsockname() in self._addresses


def connected(url: str, sent: bytes = b"") -> socket.socket:
    """Connect to a server, and send that; the kernel keeps little that is not read."""
    where = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KEPT)
    client.settimeout(20)
    client.connect((where.hostname, where.port))
    client.sendall(sent)
    return client

"""Idle connections are closed; slow ones are not."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from kbroker import web_connection
from kbroker.web_connection import TimedH11Connection
from tests.console.conftest import served


@pytest.fixture
def small(cluster):
    """A console whose kernel buffers little of what nobody reads."""
    with served(cluster.bootstrap_servers) as server:
        server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        yield server


def connected(server):
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.settimeout(20)
    where = urlsplit(server.url)
    made.connect((where.hostname, where.port))
    return made


def test_who_reads_nothing_is_cut_off(small, monkeypatch):
    lost = threading.Event()

    def told(protocol, exc):
        known(protocol, exc)
        lost.set()

    known = TimedH11Connection.connection_lost
    monkeypatch.setattr(TimedH11Connection, "connection_lost", told)
    monkeypatch.setattr(web_connection, "READER_S", 0.2)
    with connected(small) as client:
        client.sendall(b"GET /topics/hostile/records/0/3/download HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert lost.wait(20)
        assert read(client) < 200_000


def read(client):
    """Count bytes until the end, whatever kind of end."""
    count = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            count += len(piece)
    return count


BODY = b"""POST /login HTTP/1.1\r
Host: 127.0.0.1\r
Content-Type: application/x-www-form-urlencoded\r
Content-Length: 9\r
\r
x"""


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHo", BODY])
def test_who_does_not_end_a_request_is_cut_off(small, monkeypatch, sent):
    monkeypatch.setattr(web_connection, "HEAD_S", 0.2)
    monkeypatch.setattr(web_connection, "BODY_S", 0.2)
    with connected(small) as client:
        client.sendall(sent)
        assert read(client) < 1000


def test_who_does_not_end_a_request_behind_another_one_is_cut_off(small, monkeypatch):
    monkeypatch.setattr(web_connection, "BODY_S", 0.2)
    with connected(small) as client:
        client.sendall(b"GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + BODY)
        assert read(client)


class Loop:
    """Clocks that move when the test says so."""

    def __init__(self):
        self.calls = []

    def call_later(self, delay, call):
        self.calls.append(call)
        return SimpleNamespace(cancel=lambda: self.calls.remove(call))

    def create_task(self, coroutine):
        coroutine.close()
        return Mock()


@pytest.fixture
def slow():
    """Return a connection with 100 waiting bytes, its clocks, and its outcome."""
    config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
    config.load()
    loop, events, size = Loop(), [], [100]
    transport = SimpleNamespace(
        set_write_buffer_limits=lambda **_: None,
        get_write_buffer_size=lambda: size[0],
        abort=lambda: events.append("cut off"),
        get_extra_info=lambda _: None,
        close=lambda: None,
    )
    protocol = TimedH11Connection(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    protocol.connection_made(transport)
    return protocol, loop, events, size


def test_who_reads_slowly_is_not_cut_off(slow):
    protocol, loop, events, size = slow
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert loop.calls == [], "the request is whole"
    protocol.pause_writing()
    for left in (90, 80):
        size[0] = left
        loop.calls.pop()()
        assert events == []
    protocol.resume_writing()
    assert loop.calls == []
    protocol.pause_writing()
    loop.calls.pop()()
    assert events == ["cut off"]

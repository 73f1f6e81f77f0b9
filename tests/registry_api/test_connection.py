"""The limits of a connection, which its parser does not have."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from kbroker import web_connection
from kbroker.registry_api.connection import LARGEST_HEAD, MOST_AHEAD, RegistryConnection
from kbroker.schema_registry.registry import Registry
from kbroker.testing.waiting import hold
from tests import unread
from tests.registry_api.conftest import Http
from tests.unread import Lost

GET = b"GET /subjects HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /subjects/a HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n"
SCHEMA = b'{"schema": "\\"string\\""}'


@contextmanager
def connected(registry: Http) -> Iterator[socket.socket]:
    address = urlsplit(registry.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        yield connection


def answered(connection: socket.socket) -> bytes:
    """Return all bytes that arrive until the server closes."""
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except ConnectionResetError:  # it did not read everything
        pass
    return answer


def sent(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send a piece repeatedly until the server closes, or up to `most` bytes; return the number of accepted bytes."""
    took = 0
    try:
        while took < most:
            connection.sendall(piece)
            took += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return took


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * (2 * LARGEST_HEAD) + b" HTTP/1.1\r\n\r\n",
        GET + b"x: " + b"a" * (2 * LARGEST_HEAD) + b"\r\n\r\n",
        GET + b"x: y\r\n" * LARGEST_HEAD + b"\r\n",
        b"nothing of HTTP\r\n\r\n",
    ],
    ids=["path", "header", "headers", "no HTTP"],
)
def test_a_head_that_is_too_long_is_refused(registry: Http, head: bytes) -> None:
    with connected(registry) as connection:
        connection.sendall(head)
        assert answered(connection).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"a" * 1_000),
        (GET + b"x: ", b"a" * 1_000),
        (GET + b"x", b"x" * 1_000),
        (CHUNKED + b"2\r\n{}\r\n0\r\nx: ", b"a" * 1_000),
        (CHUNKED + b"2;x=", b"a" * 1_000),
    ],
    ids=["path", "value", "name", "value behind the body", "extension of a chunk"],
)
def test_what_never_ends_is_not_read_for_ever(registry: Http, begin: bytes, piece: bytes) -> None:
    with connected(registry) as connection:
        connection.sendall(begin)
        assert sent(connection, piece, 100_000_000) < 20_000_000


def test_fields_behind_a_body_are_not_kept(registry: Http) -> None:
    with connected(registry) as connection:
        connection.sendall(CHUNKED + b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 100_000 + b"\r\n")
        connection.sendall(GET + b"connection: close\r\n\r\n")
        answer = answered(connection)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"HTTP/1.1 200 " in answer


def test_requests_may_come_before_the_answers(registry: Http) -> None:
    with connected(registry) as connection:
        connection.sendall((GET + b"\r\n") * (MOST_AHEAD - 1) + GET + b"connection: close\r\n\r\n")
        assert answered(connection).count(b"HTTP/1.1 200 ") == MOST_AHEAD


def test_too_many_of_them_end_the_connection(registry: Http) -> None:
    with connected(registry) as connection:
        took = sent(connection, (GET + b"\r\n") * 2_000, 100_000_000)
    assert took < 50_000_000


@pytest.mark.long
@pytest.mark.parametrize("begin", [b"", GET, GET + b"\r\n" + GET])
def test_a_head_that_does_not_arrive_ends_the_connection(
    registry: Http, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(web_connection, "HEAD_S", 0.2)
    with connected(registry) as connection:
        connection.sendall(begin)
        assert answered(connection).count(b"HTTP/1.1 200 ") == begin.count(b"\r\n\r\n")


def test_a_client_that_reads_nothing_loses_its_connection(registry: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        registry.register(f"s{number}", {"type": "record", "name": "R", "doc": str(number) * 35_000, "fields": []})
    lost, known = set(), RegistryConnection.connection_lost

    def connection_lost(connection: RegistryConnection, exc: Exception | None) -> None:
        known(connection, exc)
        lost.add(connection.client)

    monkeypatch.setattr(RegistryConnection, "connection_lost", connection_lost)
    monkeypatch.setattr(web_connection, "READER_S", 0.2)
    with connected(registry) as connection:
        connection.sendall((GET.replace(b"/subjects", b"/schemas") + b"\r\n") * MOST_AHEAD)  # more than a kernel keeps
        hold(lambda: connection.getsockname() in lost, 20)
        assert len(answered(connection)) < MOST_AHEAD * 12 * 35_000


@pytest.mark.parametrize("query", [b"", b"?"], ids=["in the connection", "by the application"])
def test_a_client_that_leaves_little_unread_loses_its_connection(
    registry: Http, monkeypatch: pytest.MonkeyPatch, query: bytes
) -> None:
    registry.register("a", {"type": "record", "name": "R", "doc": "a" * 40_000, "fields": []})
    lost = Lost(monkeypatch)
    monkeypatch.setattr(web_connection, "READER_S", 0.2)
    with unread.connected(registry.url, b"GET /schemas/ids/1%b HTTP/1.1\r\nhost: x\r\n\r\n" % query) as client:
        hold(lambda: client in lost, 20)
        assert len(answered(client)) < 40_000


def test_a_body_is_not_waited_for_before_its_turn(registry: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may read it only when the requests before it are answered, and these may have a slow reader."""
    begun, goes_on = threading.Event(), threading.Event()
    known = Registry.subjects

    async def subjects(self: Registry, *args: Any, **options: Any) -> list[str]:
        begun.set()
        await asyncio.to_thread(goes_on.wait, 20)
        return await known(self, *args, **options)

    monkeypatch.setattr(Registry, "subjects", subjects)
    monkeypatch.setattr(web_connection, "BODY_S", 0.2)
    head = POST.replace(b"/a ", b"/a/versions ") + b"content-length: %d\r\n\r\n" % len(SCHEMA)
    with connected(registry) as connection:
        connection.sendall(GET + b"\r\n" + head + SCHEMA[:5])
        assert begun.wait(20)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # not the end of the connection
            connection.recv(1)
        connection.settimeout(20)
        goes_on.set()
        assert answered(connection).count(b"HTTP/1.1 ") == 1, "its turn has come, and it does not"


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_behind_a_request_to_upgrade_is_its_body(registry: Http, chunked: bool, in_pieces: bool) -> None:
    """Java's HttpClient requests HTTP/2 in this way; the body must neither be lost nor mistaken for another request."""
    body = SCHEMA + b" " * 10 + b"\r\n"
    framing = b"transfer-encoding: chunked\r\n" if chunked else b"content-length: %d\r\n" % len(body)
    head = POST.replace(b"/a ", b"/a/versions ") + UPGRADE + framing + b"\r\n"
    sent_body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    last = GET + UPGRADE + b"\r\n" + GET + b"connection: close\r\n\r\n"
    with connected(registry) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = head + sent_body + last
        for piece in [data[at : at + 7] for at in range(0, len(data), 7)] if in_pieces else [data]:
            connection.sendall(piece)
        answer = answered(connection)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 3
    assert answer.count(b'["a"]') == 2


@pytest.mark.parametrize(
    "head",
    [
        b"GET /subjects HTTP/1.1\r\n\r\n",
        GET + b"host: y\r\n\r\n",
        b"GET /subjects\r\n\r\n",
        POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + UPGRADE + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["no host", "two hosts", "no version", "two lengths", "two lengths and an upgrade"],
)
def test_what_is_no_http_1_is_refused(registry: Http, head: bytes) -> None:
    with connected(registry) as connection:
        connection.sendall(head)
        assert answered(connection).startswith(b"HTTP/1.1 400 ")


def test_an_answer_ends_with_its_connection(registry: Http, caplog: pytest.LogCaptureFixture) -> None:
    """Also that of a request with others behind it: asyncio logged a line for each piece that nobody could read."""
    for number in range(12):
        registry.register(f"s{number}", {"type": "record", "name": "R", "doc": str(number) * 35_000, "fields": []})
    for _ in range(10):
        with connected(registry) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            connection.sendall((GET.replace(b"/subjects", b"/schemas") + b"\r\n") * 2)
            assert connection.recv(1)
    assert len(registry.ok("GET", "/subjects")) == 12
    assert not [each for each in caplog.records if each.name == "asyncio"]

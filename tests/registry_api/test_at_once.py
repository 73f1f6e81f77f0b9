"""Requests by id that a connection answers without the application: the responses are the same."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator

import pytest

from kbroker import web_connection
from kbroker.registry_api.application import Application
from tests.registry_api.conftest import Http
from tests.registry_api.test_connection import answered, connected

GET = b"GET /schemas/ids/1%b HTTP/1.1\r\nhost: x\r\n%b\r\n"
LAST = b"connection: close\r\n"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Return the targets that were answered in this way."""
    found: list[bytes] = []
    known = Application.at_once

    def seen(self: Application, target: bytes) -> bytes | None:
        answer = known(self, target)
        if answer is not None:
            found.append(target)
        return answer

    monkeypatch.setattr(Application, "at_once", seen)
    return found


def answer_of(connection: socket.socket) -> tuple[bytes, bytes]:
    """Return head and body of the next response."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += connection.recv(1)
    length = re.search(rb"content-length: (\d+)", read)
    assert length is not None, read
    body = b""
    while len(body) < int(length[1]):
        body += connection.recv(int(length[1]) - len(body))
    return read, body


def test_the_answer_is_that_of_the_application(registry: Http, at_once: list[bytes]) -> None:
    schema = {"type": "record", "name": "R", "doc": "Ré", "fields": []}
    registry.register("a", schema, metadata={"properties": {"a": "b"}})
    answers = []
    with connected(registry) as connection:
        for query in (b"", b"?"):
            connection.sendall(GET % (query, b""))
            head, body = answer_of(connection)
            answers.append((re.sub(rb"\r\ndate: [^\r]*", b"", head), body))
    assert answers[0] == answers[1]
    assert json.loads(answers[0][1])["schema"].count("Ré") == 1
    assert at_once == [b"/schemas/ids/1"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET % (b"", b"origin: https://elsewhere.org\r\n"), 403),
        (GET % (b"", b"sec-fetch-site: cross-site\r\n"), 403),
        (GET % (b"", b"upgrade: h2c\r\nconnection: upgrade\r\n"), 200),
        (GET % (b"", b"expect: 100-continue\r\ncontent-length: 2\r\n") + b"{}", 200),
        (GET % (b"", b"transfer-encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n", 200),
        (GET % (b"?fetchMaxId=true", b""), 200),
        (GET % (b"/", b""), 200),
        (GET % (b"9", b""), 404),
        (GET % (b"9" * 12, b""), 404),
        ((GET % (b"", b"")).replace(b"GET", b"POST"), 405),
        ((GET % (b"", b"")).replace(b"GET", b"HEAD"), 200),
        ((GET % (b"", b"connection: keep-alive\r\n")).replace(b"/1.1", b"/1.0"), 200),
    ],
)
def test_other_requests_go_to_the_application(
    registry: Http, at_once: list[bytes], request_: bytes, status: int
) -> None:
    registry.register("a", "string")
    with connected(registry) as connection:
        connection.sendall(request_)
        read = b""
        while b"HTTP/1.1 %d " % status not in read:
            piece = connection.recv(65536)
            assert piece, read
            read += piece
    assert at_once == []


def test_many_that_come_at_once_are_answered_in_order(registry: Http, at_once: list[bytes]) -> None:
    for number in range(3):
        registry.register(f"s{number}", {"type": "record", "name": f"R{number}", "fields": []})
    ids = [1, 2, 3, 1, 3, 2]
    with connected(registry) as connection:
        connection.sendall(b"".join(b"GET /schemas/ids/%d HTTP/1.1\r\nhost: x\r\n\r\n" % each for each in ids))
        names = [json.loads(json.loads(answer_of(connection)[1])["schema"])["name"] for _ in ids]
    assert names == [f"R{each - 1}" for each in ids]
    assert len(at_once) < len(ids), "one connection does not keep all others waiting"


def test_a_connection_answers_both_ways_in_turn(registry: Http, at_once: list[bytes]) -> None:
    registry.register("a", "string")
    with connected(registry) as connection:
        for query in (b"", b"?", b"", b"", b"?deleted=true"):
            connection.sendall(GET % (query, b""))
            assert json.loads(answer_of(connection)[1])["subject"] == "a"
        connection.sendall(GET % (b"", LAST))
        assert answered(connection).count(b"HTTP/1.1 200 ") == 1
    assert len(at_once) == 3


def test_an_answer_is_new_after_each_change(registry: Http, at_once: list[bytes]) -> None:
    registry.register("a", "string")
    assert registry.ok("GET", "/schemas/ids/1")["subject"] == "a"
    registry.register("b", "string")
    for path in ("/subjects/a", "/subjects/a?permanent=true"):
        registry.ok("DELETE", path)
    assert registry.ok("GET", "/schemas/ids/1")["subject"] == "b"
    del at_once


def test_the_time_for_the_next_head_begins_anew(
    registry: Http, at_once: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("a", "string")
    with connected(registry) as connection:
        connection.sendall(GET % (b"", b""))
        answer_of(connection)  # its time for a head is the usual one
        monkeypatch.setattr(web_connection, "HEAD_S", 0.2)
        connection.settimeout(web_connection.READER_S)
        connection.sendall(GET % (b"", b""))
        assert answered(connection).count(b"HTTP/1.1 200 ") == 1
    assert len(at_once) == 2


def test_the_time_for_a_head_begins_with_its_first_byte(
    registry: Http, at_once: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register("a", "string")
    monkeypatch.setattr(web_connection, "HEAD_S", 2.0)
    request = GET % (b"", b"")
    with connected(registry) as connection:
        connection.sendall(request)
        answer_of(connection)
        registry.ok("GET", "/subjects")  # the server's thread has begun to wait for the next head
        monkeypatch.setattr(web_connection, "HEAD_S", 20.0)
        connection.sendall(request[:9])
        connection.settimeout(2.5)
        with pytest.raises(TimeoutError):  # not the end of the connection
            connection.recv(1)
        connection.sendall(request[9:])
        assert json.loads(answer_of(connection)[1])["subject"] == "a"
    assert len(at_once) == 2

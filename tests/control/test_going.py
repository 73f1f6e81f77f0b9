"""Clients that leave before they are answered, wait for their turn, or send nothing: no other client waits."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from kbroker import Broker, web_connection
from kbroker.control.application import AT_ONCE
from kbroker.control.server import CONNECTIONS
from tests import unread
from tests.control.conftest import Http, controlled
from tests.unread import Lost

PATIENCE_S = 10.0


def status(api: Http, path: str = "/clock") -> int:
    """Return the status of a request: 503 has no JSON."""
    connection = http.client.HTTPConnection(api.address, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def connected(api: Http, sent: str = "") -> socket.socket:
    host, port = api.address.split(":")
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    raw.sendall(sent.encode())
    return raw


def told_by(raw: socket.socket) -> bytes:
    """Return an answer that ends with JSON."""
    told = b""
    while not told.endswith(b"}"):
        part = raw.recv(10_000)
        assert part, told
        told += part
    return told


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@contextmanager
def resets_take_long(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], threading.Event]]:
    """Yield a list of the resets that have begun, and a function that ends them all."""
    end, begun = threading.Event(), list[int]()

    def reset() -> None:
        begun.append(1)
        end.wait(60)

    with monkeypatch.context() as patched:
        patched.setattr(broker, "reset", reset)
        try:
            yield begun, end
        finally:
            end.set()


@pytest.mark.parametrize("path", ["/faults/{}/wait?hits=5&timeout_ms=600000", "/requests?count=9999&timeout_ms=600000"])
def test_who_goes_is_waited_for_no_more(api: Http, path: str) -> None:
    number = api.ok("POST", "/faults", {"kind": "drop", "api": "ListGroups"})["id"]
    for _ in range(CONNECTIONS + 5):
        connected(api, f"GET {path.format(number)} HTTP/1.1\r\nHost: {api.address}\r\n\r\n").close()
    assert soon(lambda: status(api) == 200)


def test_who_reads_does_not_wait_for_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker, controlled(broker) as api, ExitStack() as stack:
        reset = f"POST /reset HTTP/1.1\r\nHost: {api.address}\r\n\r\n"
        with resets_take_long(broker, monkeypatch) as (begun, _):
            for _ in range(2 * AT_ONCE):
                stack.enter_context(connected(api, reset))
            assert soon(lambda: bool(begun))
            for path in ("/broker", "/faults", "/topics", "/requests"):
                assert status(api, path) == 200


def test_who_goes_before_his_turn_has_nothing_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker, controlled(broker) as api, ExitStack() as stack:
        reset = f"POST /reset HTTP/1.1\r\nHost: {api.address}\r\n\r\n"
        with resets_take_long(broker, monkeypatch) as (begun, end):
            for _ in range(AT_ONCE):
                stack.enter_context(connected(api, reset))
            for _ in range(2):
                with ExitStack() as going:
                    for _ in range(CONNECTIONS * 2 // 3):
                        going.enter_context(connected(api, reset))
                    assert soon(lambda: status(api) == 200)
            assert soon(lambda: status(api) == 200)
            end.set()
            api.ok("POST", "/reset")
            assert len(begun) < CONNECTIONS, "turns are in the order of the requests: none of theirs comes any more"


@pytest.mark.parametrize("said", ["", "GET /clock HTTP/1.1\r\nHost: "])
def test_who_says_nothing_is_not_waited_for(api: Http, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(web_connection, "HEAD_S", 0.3)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(api, said)) for _ in range(CONNECTIONS + 5)]
        assert soon(lambda: status(api) == 200)
        assert silent[0].recv(100) == b""


def test_half_a_request_after_a_whole_one(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "HEAD_S", 1.5)
    whole = f"GET /clock HTTP/1.1\r\nHost: {api.address}\r\n\r\n"
    with connected(api) as raw:
        for _ in range(2):
            raw.sendall(whole.encode())
            assert told_by(raw)
        raw.sendall(whole[:10].encode())
        assert raw.recv(10_000) == b""


def test_a_body_that_nobody_waits_for(
    api: Http, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_connection, "HEAD_S", 1.5)  # a busy machine may need long until it has sent the head
    with connected(api, f"POST /none HTTP/1.1\r\nHost: {api.address}\r\nContent-Length: 100\r\n\r\n1") as raw:
        assert told_by(raw).startswith(b"HTTP/1.1 404")
        raw.sendall(b"2")
        assert raw.recv(10_000) == b""
    assert [each.getMessage() for each in caplog.records] == []


def test_who_leaves_little_unread_is_cut_off(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Lost(monkeypatch)
    monkeypatch.setattr(web_connection, "READER_S", 0.2)
    request = f"GET /openapi.json HTTP/1.1\r\nHost: {api.address}\r\n\r\n"
    with unread.connected(api.url, request.encode()) as client:
        assert soon(lambda: client in lost)


def test_who_waits_longer_than_a_head_may_take_is_answered(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_connection, "HEAD_S", 1.0)
    number = api.ok("POST", "/faults", {"kind": "drop", "api": "ListGroups"})["id"]
    assert status(api, f"/faults/{number}/wait?timeout_ms=1500") == 504


def test_an_answer_that_did_not_come_is_told_without_a_time(
    broker: Broker, api: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late() -> None:
        raise TimeoutError

    monkeypatch.setattr(broker, "reset", late)
    assert api.refused(504, "POST", "/reset") == "the broker did not answer in time"

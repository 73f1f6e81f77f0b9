"""Requests that are forwarded to the leader's registry: what is kept, what is retried, what ends in bounded time."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kbroker.local_http import REGISTRY
from kbroker.registry_api import forwarding, peer
from kbroker.registry_api.requests import MOST_BODY
from kbroker.registry_api.server import RegistryServer
from kbroker.schema_registry.service import NOBODY, Place
from tests.registry_api.conftest import Http

OWN, OTHER = 1, 2


class NoStore:
    """A store that no test here uses."""

    async def ask(self, _question: Any) -> Any:
        raise AssertionError

    ask_long = decide = aside = ask


@dataclass
class Leader:
    """The leader according to the test; `places` are returned one after the other, the last one repeatedly."""

    places: list[Place]
    node_id: int = OWN
    forgotten: list[int] = field(default_factory=list)

    async def place(self) -> Place:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def forget(self, broker: int) -> None:
        self.forgotten.append(broker)


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: object


class Upstream:
    """The leader's registry: records requests, and returns the next of `answers`, or else the request itself."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answers: list[Callable[[BaseHTTPRequestHandler], None]] = []
        upstream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                seen = Seen(self.command, self.path, dict(self.headers.items()), body, self.connection)
                upstream.seen.append(seen)
                (upstream.answers.pop(0) if upstream.answers else answer(200, {"asked": self.path}))(self)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
                pass

        for method in ("GET", "POST", "PUT", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler._any)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def answer(status: int, told: Any, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def send(handler: BaseHTTPRequestHandler) -> None:
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    return send


def broken(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def broken_in_the_middle(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b"[")
    handler.wfile.flush()
    broken(handler)


def refusal(code: int) -> Callable[[BaseHTTPRequestHandler], None]:
    return answer(int(str(code)[:3]), {"error_code": code, "message": "as told"})


@contextmanager
def front(leader: Leader) -> Iterator[Http]:
    listening = REGISTRY.listening("127.0.0.1", 0, "--listen", public=False)
    with RegistryServer(NoStore(), listening, cluster_id="a", leader=leader) as server:
        yield Http(server.url)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    made = Upstream()
    yield made
    made.close()


@pytest.fixture
def registry(upstream: Upstream) -> Iterator[Http]:
    with front(Leader([Place(OTHER, upstream.url)])) as made:
        yield made


def test_a_request_is_forwarded_as_it_is(upstream: Upstream, registry: Http) -> None:
    connection = http.client.HTTPConnection(registry.address, timeout=20)
    headers = {
        "Authorization": "Basic YTpi",
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Connection": "close",
    }
    path = "/subjects/a%2Fb%20%C3%BC/versions?normalize=true&x=%2F"
    connection.request("POST", path, b"{}", headers)
    got = connection.getresponse()
    assert (got.status, json.loads(got.read())) == (200, {"asked": path})
    connection.close()
    (seen,) = upstream.seen
    assert (seen.method, seen.path, seen.body) == ("POST", path, b"{}")
    told = {name.lower(): value for name, value in seen.headers.items()}
    assert told["authorization"] == "Basic YTpi"
    assert told["x-forward"] == "true"
    assert told["host"] == upstream.url.removeprefix("http://")
    assert "connection" not in told


@pytest.mark.parametrize(("status", "code"), [(404, 40401), (409, 40901), (422, 42201)])
def test_refusals_of_the_leader_are_the_answer(upstream: Upstream, registry: Http, status: int, code: int) -> None:
    upstream.answers.append(refusal(code))
    got, body = registry.raw("GET", "/subjects/a/versions")
    assert (got, json.loads(body)) == (status, {"error_code": code, "message": "as told"})
    assert len(upstream.seen) == 1


def test_connections_are_kept(upstream: Upstream, registry: Http) -> None:
    for _ in range(5):
        registry.ok("GET", "/subjects")
    assert registry.raw("HEAD", "/subjects")[0] == 200
    registry.ok("GET", "/subjects")
    assert len({id(each.connection) for each in upstream.seen}) == 1


def test_a_kept_connection_that_has_ended_is_not_used(upstream: Upstream, registry: Http) -> None:
    upstream.answers.append(answer(200, [], connection="close"))
    registry.ok("GET", "/subjects")
    upstream.answers.append(answer(200, {"id": 7}))
    assert registry.raw("DELETE", "/subjects/a")[0] == 200
    assert len(upstream.seen) == 2


@pytest.mark.parametrize(("method", "asked"), [("GET", 2), ("POST", 2), ("PUT", 2), ("DELETE", 1)])
def test_what_may_have_been_done_is_asked_again_if_it_does_no_harm(
    upstream: Upstream, registry: Http, method: str, asked: int
) -> None:
    upstream.answers.append(broken)
    status, body = registry.raw(method, "/subjects/a", b"{}")
    assert len(upstream.seen) == asked
    if method == "DELETE":
        assert status == 500
        assert json.loads(body)["error_code"] == 50003
        assert "may have carried it out" in json.loads(body)["message"]
    else:
        assert status == 200


def test_what_was_not_decided_is_asked_again(upstream: Upstream, registry: Http) -> None:
    upstream.answers += [refusal(50004), refusal(50004)]
    assert registry.raw("DELETE", "/subjects/a")[0] == 200
    assert len(upstream.seen) == 3


def test_a_leader_that_moves_is_followed(upstream: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = f"http://127.0.0.1:{gone.getsockname()[1]}"
    leader = Leader([Place(3, nowhere), Place(NOBODY), Place(3, None), Place(OTHER, upstream.url)])
    with front(leader) as registry:
        assert registry.raw("DELETE", "/subjects/a")[0] == 200
    assert 3 in leader.forgotten
    assert len(upstream.seen) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "code", "text", "most_s"),
    [
        (Place(NOBODY), 50004, "No broker leads _schemas", 7),
        (Place(3), 50004, "Broker 3 leads _schemas, and has no schema registry", 3),
        (Place(3, "http://127.0.0.1:1"), 50003, "the registry of broker 3 at http://127.0.0.1:1 cannot be reached", 7),
    ],
)
def test_a_leader_that_cannot_be_asked(place: Place, code: int, text: str, most_s: float) -> None:
    with front(Leader([place])) as registry:
        began = time.monotonic()
        status, body = registry.raw("GET", "/subjects")
        assert time.monotonic() - began < most_s
        assert registry.ok("GET", "/") == {}
    told = json.loads(body)
    assert (status, told["error_code"]) == (500, code)
    assert text in told["message"]


@pytest.mark.parametrize("fault", [OSError("its address cannot be looked up"), None])
def test_a_broker_that_does_not_tell_of_the_leader(fault: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.3)

    class Silent(Leader):
        async def place(self) -> Place:
            if fault is not None:
                raise fault
            await asyncio.sleep(60)
            raise AssertionError

    with front(Silent([])) as registry:
        began = time.monotonic()
        code, text = registry.refused("GET", "/subjects")
        assert time.monotonic() - began < 5
    assert (code, text.startswith("Leader not known. ")) == (50004, True)


def test_a_forwarded_request_goes_no_further(upstream: Upstream, registry: Http) -> None:
    connection = http.client.HTTPConnection(registry.address, timeout=20)
    began = time.monotonic()
    connection.request("GET", "/subjects", headers={"X-Forward": "true"})
    assert json.loads(connection.getresponse().read())["error_code"] == 50004
    assert time.monotonic() - began < forwarding.PATIENCE_S / 2
    connection.close()
    assert not upstream.seen


@pytest.mark.long
def test_a_leader_that_does_not_answer(upstream: Upstream, registry: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ANSWER_S", 0.2)
    over = threading.Event()
    upstream.answers += [lambda _handler: over.wait(20) and None] * 50
    began = time.monotonic()
    status, body = registry.raw("GET", "/subjects")
    over.set()
    assert time.monotonic() - began < 8
    assert (status, json.loads(body)["error_code"]) == (500, 50003)
    assert "no answer in time" in json.loads(body)["message"]


def test_an_answer_that_ends_in_its_middle(upstream: Upstream, registry: Http) -> None:
    upstream.answers.append(broken_in_the_middle)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        registry.raw("GET", "/subjects")
    assert registry.ok("GET", "/subjects")


def test_bodies_have_a_bound(upstream: Upstream, registry: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    status, body = registry.raw("POST", "/subjects/a", b"a" * (MOST_BODY + 1))
    assert (status, json.loads(body)["error_code"]) == (413, 413)
    assert registry.raw("POST", "/subjects/a", b"a" * MOST_BODY)[0] == 200
    monkeypatch.setattr(forwarding, "BODY_S", 0.2)
    with socket.create_connection(("127.0.0.1", int(registry.address.rpartition(":")[2]))) as slow:
        slow.sendall(b"POST /subjects/a HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        assert b"408" in slow.recv(1000)
    assert [len(each.body) for each in upstream.seen] == [MOST_BODY]


def test_a_large_answer_is_passed_on_in_pieces(upstream: Upstream, registry: Http) -> None:
    large = b"[" + b"1," * 5_000_000 + b"1]"
    upstream.answers.append(answer(200, large))
    assert registry.raw("GET", "/schemas") == (200, large)


def test_many_at_once(upstream: Upstream, registry: Http) -> None:
    failed: list[Any] = []

    def ask(number: int) -> None:
        try:
            for each in range(10):
                assert registry.ok("GET", f"/a/{number}/{each}") == {"asked": f"/a/{number}/{each}"}
        except (AssertionError, OSError) as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed

"""A control API in front of an embedded broker, and HTTP with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from kbroker import Broker
from kbroker.control.server import ControlServer
from kbroker.local_http import CONTROL


class Http:
    """Sends requests to one control API; one connection for each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = urlsplit(url).netloc

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status, and the response."""
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        told = {} if sent is None else {"content-type": "application/json"}
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, sent, {**told, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        status, told = self(method, path, body)
        assert status in (200, 201), told
        return told

    def refused(self, status: int, method: str, path: str, body: Any = None, **headers: str) -> str:
        """Return the error line of a request that must be refused."""
        got, told = self(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        assert got == status, told
        line: str = told["error"]
        assert line.isprintable()
        return line


@contextmanager
def controlled(broker: Broker, *, public: bool = False) -> Iterator[Http]:
    with ControlServer(broker, CONTROL.listening("127.0.0.1", 0, "--control", public=public), public=public) as server:
        yield Http(server.url)


@pytest.fixture(scope="package")
def of_all() -> Iterator[tuple[Broker, Http]]:
    with Broker() as broker, controlled(broker) as http:
        yield broker, http


@pytest.fixture
def broker(of_all: tuple[Broker, Http]) -> Broker:
    """Yield a controlled broker in the state of its start."""
    of_all[0].reset()
    return of_all[0]


@pytest.fixture
def api(of_all: tuple[Broker, Http], broker: Broker) -> Http:
    """Yield its control API, without faults of earlier tests."""
    del broker
    of_all[1].ok("DELETE", "/faults")
    return of_all[1]

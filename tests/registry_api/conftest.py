"""A schema registry beside an embedded broker, and HTTP with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from kbroker import Broker

AVRO_TYPE = "application/vnd.schemaregistry.v1+json"


class Http:
    """Sends requests to one registry; one connection for each request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = urlsplit(url).netloc

    def raw(
        self, method: str, path: str, body: bytes | None = None, content_type: str = AVRO_TYPE
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, body, {} if body is None else {"content-type": content_type})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response to a request that must succeed."""
        status, answer = self.raw(method, path, None if body is None else json.dumps(body).encode())
        assert status == 200, answer
        return json.loads(answer)

    def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Return code and text of a request that must be refused."""
        status, answer = self.raw(method, path, None if body is None else json.dumps(body).encode())
        told = json.loads(answer)
        assert str(told["error_code"]).startswith(str(status)), answer
        return told["error_code"], told["message"]

    def register(self, subject: str, schema: Any, **more: Any) -> dict[str, Any]:
        """Register a schema, as an object or a text; `query` is the query."""
        query = more.pop("query", "")
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found: dict[str, Any] = self.ok(
            "POST", f"/subjects/{quote(subject, safe='')}/versions{query}", {"schema": text, **more}
        )
        return found


@pytest.fixture(scope="package")
def of_all() -> Iterator[tuple[Broker, Http]]:
    with Broker(registry=True) as broker:
        yield broker, Http(broker.registry_url)


@pytest.fixture
def broker(of_all: tuple[Broker, Http]) -> Broker:
    """Yield a broker with a registry, in the state of its start."""
    of_all[0].reset()
    return of_all[0]


@pytest.fixture
def registry(of_all: tuple[Broker, Http], broker: Broker) -> Http:
    """Return its registry, which is empty."""
    del broker
    return of_all[1]

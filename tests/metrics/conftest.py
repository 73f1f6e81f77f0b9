"""An embedded broker, observed from outside."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from kbroker.embed import Broker
from kbroker.metrics.server import MetricsServer

_T = TypeVar("_T")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class Seen:
    """A broker, and what serves its metrics."""

    broker: Broker
    server: MetricsServer

    def get(self, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        where = urlsplit(self.server.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def in_loop(self, call: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return call()

        assert self.broker._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self.broker._loop).result(30)

    def json(self, path: str) -> tuple[int, Any]:
        status, _, body = self.get(path)
        return status, json.loads(body)

    def families(self, accept: str = "") -> list[Metric]:
        status, headers, body = self.get("/metrics", Accept=accept)
        assert status == 200, body
        parse = openmetrics if "openmetrics" in headers["Content-Type"] else prometheus
        return list(parse(body.decode()))

    def values(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families()
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.values().get((name, frozenset(labels.items())))


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen()
    return made


@contextmanager
def watched(broker: Broker) -> Iterator[Seen]:
    """Start a broker, and serve its metrics."""
    with broker:
        loop = broker._loop
        assert loop is not None
        server = MetricsServer(listening(), loop)
        server.node = broker.node
        server.start()
        try:
            yield Seen(broker, server)
        finally:
            server.stop()


@pytest.fixture
def seen() -> Iterator[Seen]:
    with watched(Broker()) as found:
        yield found

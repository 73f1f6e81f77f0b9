"""One embedded broker for the tests of the server, and raw connections to it."""

from __future__ import annotations

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker


@pytest.fixture(scope="session")
def broker():
    with Broker({"num.partitions": "1", "socket.request.max.bytes": "1000000"}) as running:
        yield running


@pytest.fixture
def connect(broker):
    clients = []

    def open_one(**options):
        clients.append(WireClient(broker.bootstrap_servers, **options))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()

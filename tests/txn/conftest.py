"""One embedded broker for the tests of transactions; transactions that take too long are looked for often."""

from __future__ import annotations

import pytest

from kbroker import Broker

from .raw import Raw


@pytest.fixture(scope="session")
def txn_broker():
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}) as running:
        yield running


@pytest.fixture
def raw(txn_broker):
    clients = []

    def open_one(generation: int = 1) -> Raw:
        clients.append(Raw(txn_broker.bootstrap_servers, generation))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()

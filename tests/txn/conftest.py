"""One embedded broker for the tests of transactions, which searches for expired transactions often.

With KAFKA_BOOTSTRAP_SERVERS, the tests over the wire use that broker instead. This compares them with Apache Kafka
(with transaction.abort.timed.out.transaction.cleanup.interval.ms=50).
"""

from __future__ import annotations

import os

import pytest

from kbroker import Broker
from kbroker.pytest_plugin import ExternalBroker

from .raw import Raw


@pytest.fixture(scope="session")
def txn_broker():
    external = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if external:
        yield ExternalBroker(external)
        return
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

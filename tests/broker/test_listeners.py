"""Several listeners: a client is told the addresses that belong to the listener by which it came."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from kbroker import Broker

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
    "advertised.listeners": "PLAINTEXT://localhost:0,INSIDE://127.0.0.1:0,OUTSIDE://broker.example:9999",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
}


@pytest.fixture(scope="module")
def running():
    with Broker(SETTINGS) as broker:
        yield broker


def ports(broker):
    """The ports that the listeners got; the last one's is not advertised."""
    sockets = [server.sockets[0] for server in broker.node.server._listening]
    return [each.getsockname()[1] for each in sockets]


@pytest.mark.parametrize("listener", [0, 1])
def test_metadata_and_coordinators_by_listener(running, listener):
    port = ports(running)[listener]
    host = ["localhost", "127.0.0.1"][listener]
    admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")
    try:
        (broker,) = admin.describe_cluster()["brokers"]
        assert (broker["host"], broker["port"]) == (host, port)
        admin.create_topics({f"t{listener}": {"num_partitions": 1}}, wait_for_metadata=True)
        admin.list_groups()
        coordinator = admin._manager.run(admin._find_coordinator_id, "g")
        found = admin._manager.cluster._coordinator_brokers[coordinator]
        assert (found.host, found.port) == (host, port)
    finally:
        admin.close()


def test_an_advertised_address_that_is_not_here(running):
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{ports(running)[2]}", "log_level": 0})
    (broker,) = [b for b in admin.list_topics(timeout=10).brokers.values() if b.id == 1]
    assert (broker.host, broker.port) == ("broker.example", 9999)

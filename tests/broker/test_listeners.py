"""Several listeners: a client receives the addresses of the listener to which it has connected."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Broker
from kbroker.broker import base_node
from kbroker.cluster_state import BrokerEndpoint, PartitionState, TopicState
from kbroker.config.listeners import own_host_name
from kbroker.network.server import process_on
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic

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
    """Return the ports of the listeners; the last listener's port is not advertised."""
    sockets = broker.node.server._listening
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


def test_a_listener_without_a_host_serves_both_families_and_tells_the_machines_name(monkeypatch):
    monkeypatch.setattr(base_node, "own_host_name", lambda: "localhost")
    with Broker({"listeners": "PLAINTEXT://:0"}) as broker:
        assert broker.bootstrap_servers.startswith("localhost:")
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        for host in ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]:
            with WireClient(f"{host}:{port}") as client:
                (told,) = client.ask(MetadataRequest(topics=[]), 12).brokers
                assert (told.host, told.port) == ("localhost", port)


def test_a_broker_without_the_listener_is_left_out_and_leads_nothing_there():
    """As in Apache Kafka (ZkMetadataCache): a client could not use the address of another listener."""
    elsewhere = BrokerEndpoint(2, "inside", 1, listeners={"INSIDE": ("inside", 1)})
    topic = TopicState("led elsewhere", bytes(15) + b"t", (PartitionState((2,), (2,), 2, 0),))

    with Broker(SETTINGS) as running:

        async def meet():
            running.node.controller.decide(
                [], lambda state: replace(state.with_topic(topic), brokers={**state.brokers, 2: elsewhere})
            )

        asyncio.run_coroutine_threadsafe(meet(), running.node.failed.get_loop()).result(30)
        found = {}
        for name, port in zip(("PLAINTEXT", "INSIDE"), ports(running), strict=False):
            with WireClient(f"127.0.0.1:{port}") as client:
                for version in (5, 6):
                    answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)]), version)
                    ((partition,),) = (each.partitions for each in answer.topics)
                    brokers = {each.node_id: each.host for each in answer.brokers}
                    found[name, version] = sorted(brokers), partition.leader_id, partition.error_code
    assert found == {
        ("PLAINTEXT", 5): ([1], -1, ErrorCode.LEADER_NOT_AVAILABLE),
        ("PLAINTEXT", 6): ([1], -1, ErrorCode.LISTENER_NOT_FOUND),
        ("INSIDE", 5): ([1, 2], 2, ErrorCode.NONE),
        ("INSIDE", 6): ([1, 2], 2, ErrorCode.NONE),
    }


def test_a_client_of_ipv4_is_known_by_its_own_address():
    with Broker({"listeners": "PLAINTEXT://:0", "max.connections.per.ip.overrides": "127.0.0.1:1"}) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        with WireClient(f"127.0.0.1:{port}") as first, WireClient(f"127.0.0.1:{port}") as second:
            first.ask(MetadataRequest(topics=[]), 12)
            assert second.ask(MetadataRequest(topics=[]), 12) == CLOSED


def test_a_listener_without_a_host_is_told_by_the_name_of_this_machine(monkeypatch):
    monkeypatch.setattr(socket, "getfqdn", lambda: "broker-7.example")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_kw: [])
    assert own_host_name() == "broker-7.example"


def test_a_machine_whose_name_has_no_address_is_told_as_loopback(monkeypatch, caplog):
    monkeypatch.setattr(socket, "getfqdn", lambda: "no-such-host.invalid")

    def unknown(*_args, **_kw):
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert own_host_name() == "127.0.0.1"
    assert "advertised.listeners" in caplog.text


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="nothing tells who listens")
def test_an_address_in_use_names_the_process_that_has_it():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="cannot listen") as refused:
            Broker({"listeners": f"PLAINTEXT://127.0.0.1:{port}"}).start()
    text = str(refused.value)
    assert text.startswith(f"cannot listen on 127.0.0.1:{port}: Address already in use, by process {os.getpid()} (")
    assert "\n" not in text
    assert process_on(port) is None

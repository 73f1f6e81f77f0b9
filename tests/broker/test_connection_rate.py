"""Limits on new connections: those of an address with too many per second are delayed and closed, others are served.

The quotas' clock stands still, so that the first excess connection is known.
"""

from __future__ import annotations

import socket
import time

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.quota.connection_rate import ConnectionRates
from tests.broker.test_client_quotas import alter, entry
from tests.broker.test_throttling import StandingClock

OTHER = "127.0.0.2"
VERSIONS = bytes.fromhex("0000000a0012000000000001ffff")


def come(running, source=OTHER):
    host, _, port = running.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), 20, source_address=(source, 0))


def is_served(sock):
    try:
        sock.sendall(VERSIONS)
        return bool(sock.recv(4))
    except ConnectionError:
        return False


@pytest.mark.parametrize("name", [OTHER, None], ids=["its own", "the default"])
def test_an_address_that_makes_too_many(name, caplog):
    caplog.set_level("INFO")
    with Broker(clock=StandingClock()) as running, WireClient(running.bootstrap_servers) as admin:
        assert alter(admin, entry({"ip": name}, connection_creation_rate=2.0)) == [(0, None)]
        socks = [come(running) for _ in range(20)]
        assert all(map(is_served, socks))
        before = time.monotonic()
        late = [come(running) for _ in range(5)]
        assert not any(map(is_served, late))
        assert 0.4 < time.monotonic() - before < 10  # (2.1 - 2) / 2 of ten seconds
        with WireClient(running.bootstrap_servers) as other:
            assert other.ask(ApiVersionsRequest(), 0).error_code == 0
        assert running.node.server.connection_count <= 22
        assert alter(admin, entry({"ip": name}, connection_creation_rate=None)) == [(0, None)]
        socks.append(come(running))
        assert is_served(socks[-1])
        for sock in (*socks, *late):
            sock.close()
    assert "too many new connections of one address (connection_creation_rate)" in caplog.text


@pytest.mark.long
def test_only_some_are_held_at_a_time(monkeypatch):
    monkeypatch.setattr("kbroker.network.server._MOST_HELD", 3)
    with Broker(clock=StandingClock()) as running, WireClient(running.bootstrap_servers) as admin:
        assert alter(admin, entry({"ip": OTHER}, connection_creation_rate=0.1e1)) == [(0, None)]
        socks = [come(running) for _ in range(20)]
        before = time.monotonic()
        assert sum(map(is_served, socks)) == 10
        assert time.monotonic() - before < 5
        for sock in socks:
            sock.close()


def test_a_stop_waits_for_nobody_who_is_held():
    with Broker(clock=StandingClock()) as running, WireClient(running.bootstrap_servers) as admin:
        assert alter(admin, entry({"ip": OTHER}, connection_creation_rate=1.0)) == [(0, None)]
        socks = [come(running) for _ in range(11)]
        assert all(map(is_served, socks[:10]))
    assert not is_served(socks[-1])
    for sock in socks:
        sock.close()


def test_a_name_is_looked_up():
    with Broker(clock=StandingClock()) as running, WireClient(running.bootstrap_servers) as admin:
        assert alter(admin, entry({"ip": "localhost"}, connection_creation_rate=1.0)) == [(0, None)]
        rates: ConnectionRates = running.node.quotas.connections
        deadline = time.monotonic() + 20
        while not rates._by_ip:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert set(rates._by_ip) <= {"127.0.0.1", "::1"}


def test_the_rate_of_a_broker_changes_while_it_runs():
    with Broker(clock=StandingClock()) as running, WireClient(running.bootstrap_servers) as admin:
        change = IncrementalConfig(name="max.connection.creation.rate", config_operation=0, value="1")
        resource = IncrementalResource(resource_type=4, resource_name="", configs=[change])
        answer = admin.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert answer.responses[0].error_code == 0
        before = time.monotonic()
        socks = [come(running) for _ in range(11)]
        assert all(map(is_served, socks))
        assert time.monotonic() - before >= 0.99  # the broker's timer may expire within its clock's resolution
        for sock in socks:
            sock.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "key", ["max.connection.creation.rate", "listener.name.plaintext.max.connection.creation.rate"]
)
def test_a_broker_takes_so_many_a_second_and_lets_others_wait(key):
    with Broker({key: "1"}, clock=StandingClock()) as running:
        before = time.monotonic()
        socks = [come(running) for _ in range(11)]
        assert all(map(is_served, socks[:10]))
        assert is_served(socks[10])
        assert time.monotonic() - before >= 0.99  # the broker's timer may expire within its clock's resolution
        for sock in socks:
            sock.close()

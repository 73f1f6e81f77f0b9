"""Clients that send slowly, or never read their response, harm nobody; liveness and readiness."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from kbroker.metrics import server as metrics_server
from kbroker.metrics.server import CONNECTIONS
from tests.metrics.conftest import Seen


def connected(seen: Seen) -> socket.socket:
    where = urlsplit(seen.server.url)
    return socket.create_connection((where.hostname or "", where.port or 0), 20)


def test_those_who_never_read_harm_nobody(seen: Seen) -> None:
    """More clients than are admitted at a time: some send nothing, and some send requests and never read."""
    slow = [connected(seen) for _ in range(CONNECTIONS + 8)]
    try:
        for each in slow[::2]:
            each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        admin = AdminClient({"bootstrap.servers": seen.broker.bootstrap_servers})
        assert admin.list_topics(timeout=20).brokers
        assert seen.get("/metrics")[0] == 200
        assert len(seen.server._connections) <= CONNECTIONS
    finally:
        for each in slow:
            each.close()


def test_more_than_can_be_served_are_turned_away(seen: Seen) -> None:
    """Threads whose place another client has taken end once they notice; until then they count."""
    with seen.server._collecting:  # like a slow page
        askers = [connected(seen) for _ in range(4 * CONNECTIONS)]
        for each in askers:
            with contextlib.suppress(OSError):  # it is already rejected
                each.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        refused = [each for each in askers if gone(each)]
        assert len(refused) >= len(askers) - 2 * CONNECTIONS
        assert len(seen.server._threads) <= 2 * CONNECTIONS
    for each in askers:
        each.close()
    deadline = time.monotonic() + 20
    while seen.server._threads and time.monotonic() < deadline:
        time.sleep(0.01)  # until they notice
    assert seen.get("/metrics")[0] == 200


def gone(asker: socket.socket) -> bool:
    """Return whether the server has closed the connection. On an open connection there is no response yet."""
    asker.settimeout(0.01)
    try:
        return asker.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_who_takes_nothing_is_told_nothing_more(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no room for another status in the middle of a response."""
    monkeypatch.setattr(metrics_server, "_IDLE_S", 0.2)
    body = b"x" * 20_000_000
    monkeypatch.setattr(seen.server, "metrics", lambda *_: (200, "text/plain", body))
    with connected(seen) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        found = slow.recv(9)
        wait_for(lambda: not seen.server._threads)
        found += b"".join(iter(partial(slow.recv, 1 << 20), b""))
    assert found.count(b"HTTP/1.1 ") == 1
    assert len(found) < len(body)


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_makes_no_sense_is_answered(seen: Seen) -> None:
    with connected(seen) as client:
        client.sendall(b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert seen.get("/metrics", Accept="application/openmetrics-text;version=abc")[0] == 200


def test_it_stops_with_people_there(seen: Seen) -> None:
    slow = connected(seen)
    slow.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert seen.get("/healthz")[0] == 200
    seen.server.stop()
    assert not [each for each in threading.enumerate() if each.name == "kbroker-metrics"]
    slow.close()


def test_a_broker_that_serves(seen: Seen) -> None:
    status, said = seen.json("/healthz")
    assert (status, said["status"]) == (200, "alive")
    status, said = seen.json("/readyz")
    assert (status, said) == (200, {"status": "ready", "under_min_isr": {"count": 0, "partitions": []}})
    assert seen.json("/")[0] == 404


def test_partitions_under_min_isr_are_named(seen: Seen) -> None:
    seen.broker.topics.create("orders", partitions=2)

    def lose() -> None:
        for partition in seen.broker.node.replicas:
            partition.min_isr = 2

    seen.in_loop(lose)
    status, said = seen.json("/readyz")
    assert status == 200
    assert said["under_min_isr"] == {"count": 2, "partitions": ["orders-0", "orders-1"]}
    status, said = seen.json("/readyz?strict")
    assert status == 503
    assert said["reasons"] == ["partitions have fewer replicas in sync than min.insync.replicas"]
    assert seen.value("kafka_server_replicamanager_underminisrpartitioncount") == 2


@pytest.mark.parametrize("coordinator", ["groups", "transactions"])
def test_coordinators_that_load(seen: Seen, coordinator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = type(getattr(seen.broker.node, coordinator))
    states = {"active": 48, "loading": 1, "failed": 2}
    monkeypatch.setattr(found, "partition_states", lambda _self: states)
    status, said = seen.json("/readyz")
    assert status == 503
    assert said["reasons"] == [f"{coordinator} are being loaded", f"2 partitions of {coordinator} cannot be loaded"]
    assert seen.json("/healthz")[0] == 200


def test_before_and_after(seen: Seen) -> None:
    node, seen.server.node = seen.server.node, None
    assert seen.json("/readyz") == (503, {"status": "not ready", "reasons": ["it is starting"]})
    assert seen.value("kafka_server_kafkaserver_brokerstate") == 1
    logs = seen.broker.node.logs
    recovery = logs.managers[0].recovery
    seen.server.logs = logs
    recovery.begin(200, 7)
    recovery.add(50)
    directory = logs.managers[0].directory
    assert seen.value("kafka_server_kafkaserver_brokerstate") == 2
    assert seen.value("kafka_log_logmanager_remaininglogstorecover", dir=directory) == 7
    assert seen.value("kbroker_recovery_bytes", dir=directory) == 200
    assert seen.value("kbroker_recovery_read_bytes", dir=directory) == 50
    reason = "it is starting: 25 % of 200 bytes are read, 7 partitions are left"
    assert seen.json("/readyz") == (503, {"status": "not ready", "reasons": [reason]})
    assert seen.json("/healthz")[0] == 200
    seen.server.node, seen.server.stopping = node, True
    assert seen.json("/readyz") == (503, {"status": "not ready", "reasons": ["it is stopping"]})
    assert seen.get("/metrics")[0] == 503


def test_a_loop_that_does_not_answer(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "LOOP_S", 0.05)
    loop, go_on = seen.broker._loop, threading.Event()
    assert loop is not None
    loop.call_soon_threadsafe(go_on.wait, 30)
    try:
        status, said = seen.json("/healthz")
        assert (status, said["status"]) == (503, "not alive")
        assert seen.json("/readyz")[0] == 503
    finally:
        go_on.set()
    assert seen.in_loop(lambda: True)
    monkeypatch.setattr(metrics_server, "LOOP_S", 20.0)
    assert seen.json("/healthz")[0] == 200

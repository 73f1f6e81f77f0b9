"""Connections leave descriptors to the logs."""

from __future__ import annotations

import resource
import socket

import pytest

from kbroker import Broker


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as newest:
        used = newest.fileno()  # by whatever ran before
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_do_not_take_the_last_descriptors(few_descriptors, monkeypatch):
    with Broker() as broker:
        server = broker.node.server
        host, _, port = broker.bootstrap_servers.rpartition(":")
        used = socket.socket()
        monkeypatch.setattr(server, "_last_descriptor", used.fileno() + 45)
        used.close()
        clients = [socket.create_connection((host, int(port))) for _ in range(30)]
        for client in clients:
            client.settimeout(10)
        assert clients[-1].recv(1) == b"", "refused"
        assert 0 < server.connection_count < 30
        for client in clients:
            client.close()

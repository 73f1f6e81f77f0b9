"""Connections leave descriptors free for the logs."""

from __future__ import annotations

import gc
import resource
import socket

import pytest

from kbroker import Broker
from kbroker.network.server import java_address


def highest_of_next(count):
    """Return the highest of the next descriptors: earlier tests may have left gaps between used numbers."""
    taken = [socket.socket() for _ in range(count)]
    highest = max(each.fileno() for each in taken)
    for each in taken:
        each.close()
    return highest


@pytest.fixture
def few_descriptors():
    gc.collect()  # the cycles that earlier tests left could be closed halfway, and free lower numbers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest_of_next(200) + 1024, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_do_not_take_the_last_descriptors(few_descriptors, monkeypatch):
    with Broker() as broker:
        server = broker.node.server
        host, _, port = broker.bootstrap_servers.rpartition(":")
        monkeypatch.setattr(server, "_last_descriptor", highest_of_next(45))
        clients = [socket.create_connection((host, int(port))) for _ in range(30)]
        for client in clients:
            client.settimeout(10)
        assert clients[-1].recv(1) == b"", "refused"
        assert 0 < server.connection_count < 30
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::a0:1", "2001:db8:0:0:0:0:a0:1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
    ],
)
def test_addresses_are_told_as_java_tells_them(address, told):
    assert java_address(address) == told

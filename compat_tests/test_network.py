"""The network that tests cut: which bytes pass, which arrive late, and which ends notice a reset."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from compat_tests.harness.network import ZOOKEEPER, Network

_PATIENCE_S = 20.0
_A_WHILE_S = 0.3


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(4096):
                self.request.sendall(data)
        except ConnectionError:
            pass


@pytest.fixture
def caller() -> Iterator[tuple[Network, socket.socket]]:
    """Yield a network, a connection of broker 1 to a fake ZooKeeper, and what that ZooKeeper received."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address[:2]
        with Network(f"{host!s}:{port}") as network:
            address = network.settings(1, 9092)["zookeeper.connect"].split(":")
            with socket.create_connection((address[0], int(address[1])), timeout=_PATIENCE_S) as client:
                yield network, client
        server.shutdown()
        thread.join()


def exactly(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        data = client.recv(count - len(found))
        assert data, "the connection was closed"
        found += data
    return found


def test_what_is_cut_arrives_late(caller: tuple[Network, socket.socket]) -> None:
    network, client = caller
    client.sendall(b"one")
    assert exactly(client, 3) == b"one"
    for link in ((1, ZOOKEEPER), (ZOOKEEPER, 1)):
        network.cut(link)
        client.sendall(b"two")
        client.settimeout(_A_WHILE_S)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(_PATIENCE_S)
        network.heal()
        assert exactly(client, 3) == b"two"


def test_a_reset_loses_it_and_is_heard(caller: tuple[Network, socket.socket]) -> None:
    network, client = caller
    client.sendall(b"one")
    assert exactly(client, 3) == b"one"
    network.cut((1, ZOOKEEPER))
    client.sendall(b"two")
    network.heal((2, ZOOKEEPER), reset=True)  # a broker that the cut does not concern
    network.heal((1, ZOOKEEPER), reset=True)
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_slow_way_takes_its_time(caller: tuple[Network, socket.socket]) -> None:
    network, client = caller
    network.slow(10_000, (ZOOKEEPER, 1))
    began = time.monotonic()
    client.sendall(bytes(5000))
    assert exactly(client, 5000) == bytes(5000)
    assert time.monotonic() - began > _A_WHILE_S


def test_an_end_is_heard_at_the_other_end(caller: tuple[Network, socket.socket]) -> None:
    network, client = caller
    client.sendall(b"one")
    client.shutdown(socket.SHUT_WR)
    assert exactly(client, 3) == b"one"
    assert client.recv(1) == b""
    deadline = time.monotonic() + _PATIENCE_S
    while network.connections:
        assert time.monotonic() < deadline
        time.sleep(0.01)

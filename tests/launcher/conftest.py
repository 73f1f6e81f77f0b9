from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def zookeeper() -> Iterator[str]:
    """Return an address that accepts connections, like a ZooKeeper; the brokers of these tests do not use it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"

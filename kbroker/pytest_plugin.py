"""pytest fixtures: `kafka_broker` (session) and `kafka_topic` (function).

With KAFKA_BOOTSTRAP_SERVERS set, the fixtures use that broker instead: one suite, two targets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kbroker.embed import Broker

_PROBE_SECONDS = 3.0


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that somebody else runs."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker | ExternalBroker]:
    """A running broker; `.bootstrap_servers` is what clients connect to."""
    external = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if external:
        _require_reachable(external)
        yield ExternalBroker(external)
        return
    from kbroker.embed import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: Broker | ExternalBroker) -> Iterator[str]:
    """The name of a fresh topic with one partition, deleted afterwards."""
    with _clients_warnings_ignored():
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap_servers.split(","))
    name = f"test-{uuid.uuid4().hex[:12]}"
    try:
        with _clients_warnings_ignored():
            admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        yield name
        with _clients_warnings_ignored():
            admin.delete_topics([name])
    finally:
        with _clients_warnings_ignored():
            admin.close()


@contextlib.contextmanager
def _clients_warnings_ignored() -> Iterator[None]:
    """Keep the deprecations of kafka-python's own code out of a suite, which may run with `-W error`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _require_reachable(bootstrap_servers: str) -> None:
    """Fail in one line when no address takes a connection: a client would try for half a minute."""
    reasons = []
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            reasons.append(f"{address.strip()!r} is not HOST:PORT")
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS).close()
        except (OSError, OverflowError) as err:
            reasons.append(f"{address.strip()}: {getattr(err, 'strerror', None) or err}")
        else:
            return
    pytest.fail(f"no broker at KAFKA_BOOTSTRAP_SERVERS: {'; '.join(reasons)}", pytrace=False)

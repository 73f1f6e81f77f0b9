"""pytest fixtures: `kafka_broker` (session) and `kafka_topic` (function).

With KAFKA_BOOTSTRAP_SERVERS set, the fixtures use that broker instead: one suite, two targets.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kbroker.embed import Broker


@dataclass(frozen=True)
class ExternalBroker:
    """A broker that somebody else runs."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Broker | ExternalBroker]:
    """A running broker; `.bootstrap_servers` is what clients connect to."""
    external = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if external:
        yield ExternalBroker(external)
        return
    from kbroker.embed import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka_topic(kafka_broker: Broker | ExternalBroker) -> Iterator[str]:
    """The name of a fresh topic with one partition, deleted afterwards."""
    from kafka.admin import KafkaAdminClient, NewTopic

    name = f"test-{uuid.uuid4().hex[:12]}"
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.bootstrap_servers)
    try:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
        yield name
        admin.delete_topics([name])
    finally:
        admin.close()

"""Which configs that a cluster has stored take effect; passwords in ZooKeeper are in tests/cluster."""

from __future__ import annotations

import pytest

from kbroker.config.model import InvalidConfig
from kbroker.config.stored_configs import stored_values
from kbroker.config.table import TOPIC
from kbroker.config.values import parse_all


def test_what_other_brokers_have_stored_counts_as_far_as_it_can() -> None:
    """Apache Kafka 3.9 accepts smaller segments than 4.4, and a znode may contain anything."""
    stored = {
        "segment.bytes": "100000",
        "retention.ms": "soon",
        "cleanup.policy": "burn",
        "compression.type": "brotli",
        "max.message.bytes": "2000",
    }
    found = stored_values(TOPIC, stored, {"retention.ms": 7})
    assert found["segment.bytes"] == 100_000
    assert found["retention.ms"] == 7
    assert found["cleanup.policy"] == TOPIC["cleanup.policy"].default
    assert found["compression.type"] == TOPIC["compression.type"].default
    assert found["max.message.bytes"] == 2000
    assert found.keys() == TOPIC.keys()
    with pytest.raises(InvalidConfig):
        parse_all(TOPIC, stored, {})

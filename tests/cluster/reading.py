"""The contents of a topic, as a client reads them from its first record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 30


def consumed(settings: Mapping[str, Any], topic: str, count: int, partition: int = 0) -> list[int]:
    """Return this many numbers of a partition, in order; fails if they do not arrive."""
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), PATIENCE_S)
        assert messages, f"only {len(found)} of {count} came"
        found += [int(message.value()) for message in messages]
    consumer.close()
    return found

"""What a topic holds, as a client reads it from its first record on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 30


def consumed(settings: Mapping[str, Any], topic: str, count: int, partition: int = 0) -> list[int]:
    """Return so many numbers of a partition, in their order; fails where they do not come."""
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), PATIENCE_S)
        assert messages, f"only {len(found)} of {count} came"
        found += [int(message.value()) for message in messages]
    consumer.close()
    return found

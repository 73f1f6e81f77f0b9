"""Writing one record.

Owns the choice of a partition by the key, as in Kafka's clients. Never creates a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kafka.serializer import Serializer

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError

_PATIENCE_S: Final = 10.0


class _AsItIs(Serializer):  # type: ignore[misc]
    """The client refuses a null value without a key, but serializers may return null."""

    def serialize(self, topic: str, headers: object, data: tuple[bytes | None]) -> bytes | None:  # noqa: ARG002
        return data[0]


def write_record(
    connection: Connection,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes]] = (),
    partition: int | None = None,
) -> tuple[int, int]:
    """Write a record with acks from all in-sync replicas; return its partition and offset; raises AdminError."""
    producer: Any = connection.producer(acks=-1, linger_ms=0, value_serializer=_AsItIs(), max_block_ms=5_000)
    try:
        known = producer.partitions_for(topic)
        if partition is not None and partition not in known:
            raise AdminError(f"topic {topic} has no partition {partition}")
        told = producer.send(topic, (value,), key, list(headers), partition).get(_PATIENCE_S)
    finally:
        producer.close(timeout=1)
    return int(told.partition), int(told.offset)

"""What verbs that read records share: which partitions a topic has, and how far one has read.

Never reads a record.
"""

from __future__ import annotations

from typing import Any

from kafka.structs import TopicPartition

from kbroker.admin.did_you_mean import missing_topic
from kbroker.admin.errors import AdminError


def named(partition: TopicPartition) -> str:
    """Return how people write a partition."""
    return f"{partition.topic}-{partition.partition}"


def known_partitions(consumer: Any, topic: str) -> set[int]:
    """Return the numbers of a topic's partitions; raises AdminError where there is no such topic."""
    known = consumer.partitions_for_topic(topic)
    if not known:
        raise AdminError(missing_topic(topic, sorted(consumer.topics())))
    return set(known)


def position(consumer: Any, partition: TopicPartition) -> int:
    """Return the next offset of a partition; -1 while it is not known."""
    offset = consumer.position(partition, timeout_ms=1_000)
    return -1 if offset is None else int(offset)


def forget_fetched(consumer: Any) -> None:
    """Have a consumer fetch anew after a batch that it could not read.

    kafka-python 3.0 keeps the broken batch as the next to read, and a poll then loops for ever.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - no public method does so but a change of the assignment
    if fetcher._next_partition_records is not None:  # noqa: SLF001
        fetcher._next_partition_records.drain()  # noqa: SLF001

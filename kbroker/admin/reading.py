"""What verbs that read records share: times as they are typed, which partitions a topic has, and how far one has read.

Never reads a record.
"""

from __future__ import annotations

import datetime
from typing import Any

from kafka.structs import TopicPartition

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.near import missing_topic


def parse_time(text: str) -> int:
    """Return a time in ms; one without a zone is in UTC."""
    if text.isdecimal():
        return int(text)
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise WrongInput(f"{text!r} is no time: write ms since 1970 or 2026-01-31T12:00:00Z") from None
    when = when.replace(tzinfo=when.tzinfo or datetime.UTC)
    return int(when.timestamp() * 1000)


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

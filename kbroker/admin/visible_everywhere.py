"""Waiting until a change is visible: topics on every broker, configs on the broker that received the request.

The controller answers as soon as it has made the change. The other brokers receive the change a moment later, and the
next command may send its request to one of them. Never fails, because the change is already made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.errors import KafkaError

from kbroker.admin.own_request import ask_broker, live_brokers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_PATIENCE_S = 10.0
_PATIENCE_FOR_CONFIGS_S = 3.0
_PAUSE_S = 0.05
_UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
Key = tuple[str, int]


def wait_for_topics(admin: Any, names: Iterable[str], partitions: int = 0) -> None:
    """Wait until every broker returns the topics, with leaders, and with at least `partitions` partitions."""

    def ready(topic: MetadataResponseTopic) -> bool:
        if topic.error_code in (_UNKNOWN, ErrorCode.LEADER_NOT_AVAILABLE):
            return False
        enough = len(topic.partitions) >= partitions or topic.error_code != 0
        return enough and all(each.leader_id >= 0 for each in topic.partitions)

    _wait(admin, list(names), ready)


def wait_for_deletion(admin: Any, names: Iterable[str]) -> None:
    """Wait until no broker returns the topics any more."""
    _wait(admin, list(names), lambda topic: topic.error_code == _UNKNOWN)


def wait_for_replicas(admin: Any, targets: Mapping[Key, Sequence[int]]) -> None:
    """Wait until every broker returns these replicas of partitions, and no others."""
    _wait_for_partitions(admin, targets, lambda where, each: list(each.replica_nodes) == list(targets[where]))


def wait_for_preferred_leaders(admin: Any, keys: Iterable[Key]) -> None:
    """Wait until every broker returns the first replicas of partitions as their leaders."""
    _wait_for_partitions(admin, keys, lambda _, each: list(each.replica_nodes[:1]) == [each.leader_id])


def wait_for_configs(visible: Callable[[], bool]) -> None:
    """Wait until the new values of configs are readable, according to `visible`."""
    deadline = time.monotonic() + _PATIENCE_FOR_CONFIGS_S
    while not visible() and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)


def _wait_for_partitions(
    admin: Any, keys: Iterable[Key], holds: Callable[[Key, MetadataResponsePartition], bool]
) -> None:
    wanted = set(keys)

    def matches(topic: MetadataResponseTopic) -> bool:
        return all(
            holds((str(topic.name), each.partition_index), each)
            for each in topic.partitions
            if (topic.name, each.partition_index) in wanted
        )

    _wait(admin, sorted({name for name, _ in wanted}), matches)


def _wait(admin: Any, names: list[str], matches: Callable[[MetadataResponseTopic], bool]) -> None:
    """Wait until every reachable broker's Metadata matches, for at most ten seconds."""
    if not names:
        return
    deadline = time.monotonic() + _PATIENCE_S
    for broker in live_brokers(admin):
        while not _holds(admin, broker, names, matches) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)


def _holds(admin: Any, broker: int, names: list[str], matches: Callable[[MetadataResponseTopic], bool]) -> bool:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    try:
        answer = ask_broker(admin, broker, request, MetadataResponse)
    except KafkaError:
        return True
    return all(matches(topic) for topic in answer.topics)

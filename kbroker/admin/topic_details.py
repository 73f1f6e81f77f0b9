"""Details of topics beyond Metadata: important configs, bytes, and problems of partitions.

Owns requests about many topics at the same time. Owns the problems of a partition: the conditions that kafka-topics
calls under-replicated, unavailable and so on. Values that the caller has no right to read are left out. Never prints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.errors import KafkaError

from kbroker.admin.configs import TYPES
from kbroker.admin.own_request import ask_any
from kbroker.config.model import ConfigSource
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)

_AT_ONCE: Final = 200
"""The maximum number of topics in one request."""
_SHOWN: Final = ("min.insync.replicas", "cleanup.policy", "retention.ms")
_MIN_ISR: Final = "min.insync.replicas"
Ails = Callable[[Mapping[str, Any], int], bool]

AILMENTS: Final[Mapping[str, Ails]] = {
    "under_replicated_partitions": lambda p, _min: len(p["isr_nodes"]) < len(p["replica_nodes"]),
    "unavailable_partitions": lambda p, _min: p["leader_id"] < 0,
    "under_min_isr_partitions": lambda p, least: len(p["isr_nodes"]) < least,
    "at_min_isr_partitions": lambda p, least: len(p["isr_nodes"]) == least,
}
"""Tests for problems of a partition, by kafka-topics' names. They use Metadata and min.insync.replicas."""


def with_details(admin: Any, topics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return listed topics with their most important configs and their size in bytes; None where it is unknown.

    The largest replica of a partition defines the size of the partition.
    """
    names = [str(topic["name"]) for topic in topics]
    configs, sizes = topic_configs(admin, names, _SHOWN), _sizes(admin)
    return [
        {
            **topic,
            **{key.replace(".", "_"): _value(configs.get(str(topic["name"]), {}), key) for key in _SHOWN},
            "bytes": sizes.get(str(topic["name"])),
        }
        for topic in topics
    ]


def topic_configs(
    admin: Any, names: Sequence[str], keys: Sequence[str] | None = None
) -> dict[str, dict[str, DescribeConfigsResourceResult]]:
    """Return all or some configs of topics by name and key; leave out topics whose configs cannot be read."""
    found: dict[str, dict[str, DescribeConfigsResourceResult]] = {}
    for at in range(0, len(names), _AT_ONCE):
        wanted = None if keys is None else list(keys)
        resources = [DescribeConfigsResource(TYPES["topic"], name, wanted) for name in names[at : at + _AT_ONCE]]
        answer = ask_any(admin, DescribeConfigsRequest(resources, include_synonyms=False), DescribeConfigsResponse)
        for each in () if answer is None else answer.results:
            if not each.error_code:
                found[each.resource_name] = {config.name: config for config in each.configs}
    return found


def ailing(
    admin: Any, topics: Iterable[Mapping[str, Any]], wanted: Sequence[str], *, with_overrides: bool
) -> list[dict[str, Any]]:
    """Return topics, as in Metadata, with only those partitions that have one of the `wanted` problems.

    If `wanted` is empty, the topics keep all partitions. `with_overrides` leaves out topics that do not override any
    config.
    """
    topics = list(topics)
    needs_configs = with_overrides or any("min_isr" in each for each in wanted)
    configs = topic_configs(admin, [str(topic["name"]) for topic in topics]) if needs_configs else {}
    found = []
    for topic in topics:
        own = configs.get(str(topic["name"]), {})
        if with_overrides and not any(c.config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG for c in own.values()):
            continue
        least = int(_value(own, _MIN_ISR) or 1)
        chosen = [p for p in topic["partitions"] if not wanted or any(AILMENTS[each](p, least) for each in wanted)]
        if chosen:
            found.append({**topic, "partitions": chosen})
    return found


def _value(configs: Mapping[str, DescribeConfigsResourceResult], key: str) -> str | None:
    return configs[key].value if key in configs else None


def _sizes(admin: Any) -> dict[str, int]:
    """Return the sizes of topics in bytes, by name; an empty dict if the cluster does not return them."""
    largest: dict[tuple[str, int], int] = {}
    try:
        for broker in admin.describe_log_dirs():
            for directory in broker["log_dirs"]:
                for topic in directory["topics"]:
                    for each in topic["partitions"]:
                        key = (str(topic["name"]), int(each["partition_index"]))
                        largest[key] = max(largest.get(key, 0), int(each["partition_size"]))
    except KafkaError:
        return {}
    sizes: dict[str, int] = {}
    for (name, _), size in largest.items():
        sizes[name] = sizes.get(name, 0) + size
    return sizes

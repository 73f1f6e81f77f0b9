"""Topics: listing, creating and changing them; kbroker/changes.py deletes them.

Owns the description of a topic, and the wait until every broker knows of a change. Never prints.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from kafka.admin import AlterConfigOp, ConfigResource, OffsetSpec
from kafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError
from kafka.structs import TopicPartition

from kbroker.admin.configs import check_size
from kbroker.admin.did_you_mean import no_such_topic_config
from kbroker.admin.errors import AdminError, Refusal, check_code, code_error, error_text
from kbroker.admin.partition_offsets import retried_offsets_at
from kbroker.admin.visible_everywhere import wait_for_topics
from kbroker.protocol.wire import uuid_text

_DYNAMIC_TOPIC: Final = "DYNAMIC_TOPIC_CONFIG"
EXISTS: Final = "TOPIC_ALREADY_EXISTS"
INVALID_CONFIG: Final = "INVALID_CONFIG"


def listed_topics(admin: Any) -> list[dict[str, Any]]:
    """Return the name and the size of each topic, including internal topics, sorted by name."""
    return [
        {
            "name": topic["name"],
            "partitions": len(topic["partitions"]),
            "replicas": max((len(p["replica_nodes"]) for p in topic["partitions"]), default=0),
            "internal": topic["is_internal"],
        }
        for topic in sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    ]


def create_topics(
    admin: Any,
    names: Sequence[str],
    partitions: int = -1,
    replicas: int = -1,
    configs: Mapping[str, str] | None = None,
    *,
    assignment: Sequence[Sequence[int]] = (),
    dry_run: bool = False,
) -> dict[str, Refusal | None]:
    """Create topics and wait until all brokers know of them; return the refusals.

    A number of -1 means the broker's default. An `assignment` lists the brokers of each partition.
    """
    for key, value in (configs or {}).items():
        check_size(key, value)
    requested = {
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": {index: list(brokers) for index, brokers in enumerate(assignment)},
        "configs": dict(configs or {}),
    }
    result = admin.create_topics(dict.fromkeys(names, requested), validate_only=dry_run, raise_errors=False)
    refusals = {topic["name"]: _refusal(topic) for topic in result["topics"]}
    if not dry_run:
        with contextlib.suppress(KafkaError):  # the topics already exist, whether or not the wait succeeds
            wait_for_topics(admin, [name for name, refusal in refusals.items() if refusal is None])
    return refusals


def _refusal(topic: Mapping[str, Any]) -> Refusal | None:
    error = code_error(topic["error_code"])
    if error is None:
        return None
    text = f"cannot create {topic['name']}: {error_text(error, topic.get('error_message'))}"
    return Refusal(str(error.message), text)


def existing_topics(admin: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """Return the metadata, by name, of the given topics that exist; None means all topics."""
    found = {}
    for topic in admin.describe_topics(None if names is None else list(names)):
        error = code_error(topic["error_code"])
        if error is None:
            found[topic["name"]] = topic
        elif error.message != "UNKNOWN_TOPIC_OR_PARTITION":
            raise AdminError(f"topic {topic['name']}: {error_text(error)}")
    return found


def describe_topic(admin: Any, topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a topic from its metadata: partitions with offsets, and overridden configs."""
    name = topic["name"]
    led = {
        TopicPartition(name, p["partition_index"]): p["leader_id"] for p in topic["partitions"] if p["leader_id"] >= 0
    }
    earliest = _offsets(admin, led, OffsetSpec.EARLIEST)
    latest = _offsets(admin, led, OffsetSpec.LATEST)
    configs = admin.describe_configs([ConfigResource("TOPIC", name)]).get("topic", {}).get(name, {})
    return {
        "name": name,
        "id": id_text(topic.get("topic_id")),
        "internal": topic["is_internal"],
        "configs": {
            key: entry["value"] for key, entry in sorted(configs.items()) if entry["config_source"] == _DYNAMIC_TOPIC
        },
        "partitions": [
            {
                "partition": p["partition_index"],
                "leader": p["leader_id"] if p["leader_id"] >= 0 else None,
                "replicas": p["replica_nodes"],
                "isr": p["isr_nodes"],
                "earliest": earliest.get(p["partition_index"]),
                "latest": latest.get(p["partition_index"]),
            }
            for p in sorted(topic["partitions"], key=lambda p: int(p["partition_index"]))
        ],
    }


def _offsets(admin: Any, led: Mapping[TopicPartition, int], spec: int) -> dict[int, int]:
    """Return offsets by partition; leave out partitions that have no leader yet."""
    offsets = {}
    for leader in set(led.values()):
        of_one = {each: broker for each, broker in led.items() if broker == leader}
        with contextlib.suppress(KafkaConnectionError, NodeNotReadyError):
            found = retried_offsets_at(admin, of_one, spec)
            offsets.update({each.partition: offset for each, offset in found.items()})
    return offsets


def id_text(topic_id: Any) -> str | None:
    """Return a topic's id in the form of Kafka's tools; None before Kafka 2.8, which had no ids."""
    return None if topic_id is None else uuid_text(UUID(str(topic_id)).bytes)


def set_topic_configs(admin: Any, name: str, configs: Mapping[str, str | None]) -> None:
    """Set configs of a topic, and reset configs whose value is None to their defaults. Raises AdminError."""
    changes = {
        key: (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value) for key, value in configs.items()
    }
    message = admin.alter_configs([ConfigResource("TOPIC", name, changes)], raise_on_unknown=False)["topic"][name]
    if message != "OK":
        message = re.sub(r"^\[Error -?\d+\] \w+: ", "", message)
        raise AdminError(f"cannot alter {name}: {message}{no_such_topic_config(configs)}")


def add_partitions(
    admin: Any, name: str, count: int, assignment: Sequence[Sequence[int]] = (), *, dry_run: bool = False
) -> None:
    """Increase a topic's number of partitions to `count`, and wait until all brokers know of it. Raises AdminError.

    An `assignment` lists the brokers of each new partition.
    """
    requested = {name: {"count": count, "assignments": [list(each) for each in assignment]} if assignment else count}
    for each in admin.create_partitions(requested, validate_only=dry_run, raise_errors=False).results:
        check_code(each.error_code, f"cannot alter {name}", each.error_message)
    if not dry_run:
        wait_for_topics(admin, [name], count)

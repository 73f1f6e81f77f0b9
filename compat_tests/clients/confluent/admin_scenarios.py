"""Scenarios: topics, configs, records and the cluster, as an admin sees and changes them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from compat_tests.clients.common import T0, WAIT_S, bulk, wait_for
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.tools import admin, answers, create, fill, producer, read, send
from compat_tests.harness.brokers import PRIVATE


@scenarios.add
def creating_topics(bootstrap: str, unique: str) -> object:
    client = admin(bootstrap)
    seen = {}
    for label, topic in {
        "defaults": NewTopic(f"{unique}-a"),
        "sized": NewTopic(f"{unique}-b", 3, 1),
        "configured": NewTopic(f"{unique}-c", 1, 1, config={"retention.ms": "1000", "cleanup.policy": "compact"}),
        "assigned": NewTopic(f"{unique}-d", 2, replica_assignment=[[1], [1]]),
        "again": NewTopic(f"{unique}-b", 3, 1),
        "no partitions": NewTopic(f"{unique}-x", 0, 1),
        "too many replicas": NewTopic(f"{unique}-x", 1, 3),
        "unknown broker": NewTopic(f"{unique}-x", 1, replica_assignment=[[8]]),
        "unknown config": NewTopic(f"{unique}-x", 1, 1, config={"no.such": "1"}),
        "bad value": NewTopic(f"{unique}-x", 1, 1, config={"retention.ms": "soon"}),
        "bad name": NewTopic("a b", 1, 1),
        "long name": NewTopic("x" * 250, 1, 1),
    }.items():
        seen[label] = list(answers(client.create_topics([topic])).values())
    seen["only asked"] = list(
        answers(client.create_topics([NewTopic(f"{unique}-e", 1, 1)], validate_only=True)).values()
    )
    wait_for("the topics", lambda: f"{unique}-d" in client.list_topics(timeout=10).topics)
    names = sorted(name for name in client.list_topics(timeout=10).topics if name.startswith(unique))

    def show(found: Any) -> dict[str, Any]:
        return {
            "name": found.name,
            "internal": found.is_internal,
            "id": bool(str(found.topic_id)),
            "operations": found.authorized_operations,
            "partitions": [
                [each.id, each.leader.id, [n.id for n in each.replicas], [n.id for n in each.isr]]
                for each in found.partitions
            ],
        }

    asked = TopicCollection([f"{unique}-{letter}" for letter in "bde"])
    options = {"include_authorized_operations": True}
    return {**seen, "listed": names, "described": answers(client.describe_topics(asked, **options), show)}


@scenarios.add
def deleting_topics(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    client = admin(bootstrap)
    return {
        "delete": answers(client.delete_topics([topic])),
        "again": answers(client.delete_topics([topic])),
        "unknown": answers(client.delete_topics([f"{unique}-none", "a b"])),
        "gone": wait_for("the topic to go", lambda: topic not in client.list_topics(timeout=10).topics),
    }


@scenarios.add
def adding_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    client = admin(bootstrap)
    seen = {str(count): answers(client.create_partitions([NewPartitions(topic, count)])) for count in (2, 1, 4)}
    seen["unknown"] = answers(client.create_partitions([NewPartitions(f"{unique}-none", 4)]))
    seen["wrong broker"] = answers(client.create_partitions([NewPartitions(topic, 5, replica_assignment=[[9]])]))
    wait_for("four partitions", lambda: len(client.list_topics(topic, timeout=10).topics[topic].partitions) == 4)
    with producer(bootstrap) as sender:
        seen["usable"] = {"told": send(sender, topic, b"v", partition=3, timestamp=T0)}
    return seen


def _configs(found: dict[str, ConfigEntry], *, synonyms: bool = True) -> dict[str, Any]:
    def show(entry: ConfigEntry) -> list[Any]:
        more = sorted([each.name, each.value, each.source] for each in entry.synonyms.values()) if synonyms else []
        return [entry.value, entry.source, entry.is_read_only, entry.is_default, entry.is_sensitive, more]

    return {name: show(entry) for name, entry in found.items()}


@scenarios.add
def describing_configs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, retention_ms="12345", cleanup_policy="compact")
    client = admin(bootstrap)
    seen = {}
    for kind, name in (
        (ResourceType.TOPIC, topic),
        (ResourceType.TOPIC, f"{unique}-none"),
        (ResourceType.BROKER, "1"),
        (ResourceType.BROKER, "7"),
        (ResourceType.GROUP, unique),
    ):
        asked = ConfigResource(kind, name)
        (found,) = answers(client.describe_configs([asked], request_timeout=2), _configs).values()
        seen[f"{kind.name} {name}"] = {key: entry for key, entry in found.items() if key not in PRIVATE}
    return seen


@scenarios.add
def altering_configs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, retention_ms="1000")
    client = admin(bootstrap)

    def alter(key: str, value: str | None, op: AlterConfigOpType, name: str = topic, **options: Any) -> Any:
        entry = ConfigEntry(key, value, incremental_operation=op)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        return list(answers(client.incremental_alter_configs([resource], **options)).values())

    def now() -> dict[str, Any]:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        (found,) = answers(client.describe_configs([asked])).values()
        return {key: entry.value for key, entry in found.items() if not entry.is_default}

    seen = {
        "set": alter("segment.ms", "70000", AlterConfigOpType.SET),
        "append": alter("cleanup.policy", "compact", AlterConfigOpType.APPEND),
        "subtract": alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT),
        "delete": alter("retention.ms", None, AlterConfigOpType.DELETE),
        "append to number": alter("retention.ms", "1", AlterConfigOpType.APPEND),
        "bad value": alter("retention.ms", "soon", AlterConfigOpType.SET),
        "bad key": alter("no.such", "1", AlterConfigOpType.SET),
        "only asked": alter("segment.bytes", "2000000", AlterConfigOpType.SET, validate_only=True),
        "unknown topic": alter("segment.ms", "70000", AlterConfigOpType.SET, name=f"{unique}-none"),
    }
    seen["after"] = wait_for("the changes", lambda: now() if "retention.ms" not in now() else None)
    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.bytes": "3000000"})
    seen["whole"] = list(answers(client.alter_configs([whole])).values())
    seen["after whole"] = wait_for("the change", lambda: now() if "segment.ms" not in now() else None)
    return seen


@scenarios.add
def altering_broker_configs(bootstrap: str, unique: str) -> object:
    client = admin(bootstrap)

    def alter(name: str, key: str, value: str | None, op: AlterConfigOpType) -> Any:
        entry = ConfigEntry(key, value, incremental_operation=op)
        resource = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
        return list(answers(client.incremental_alter_configs([resource])).values())

    def now(name: str = "1") -> dict[str, Any]:
        (found,) = answers(client.describe_configs([ConfigResource(ResourceType.BROKER, name)]), _configs).values()
        return {"log.cleaner.delete.retention.ms": found.get("log.cleaner.delete.retention.ms")}

    key, set_, delete = "log.cleaner.delete.retention.ms", AlterConfigOpType.SET, AlterConfigOpType.DELETE
    seen = {"read only": alter("1", "num.partitions", "2", set_), "bad": alter("1", key, "-5", set_)}
    seen["set"] = alter("1", key, "86400001", set_)
    seen["described"] = wait_for("the change", lambda: now() if now()[key][0] == "86400001" else None)
    seen["delete"] = alter("1", key, None, delete)
    seen["back"] = wait_for("the change", lambda: now() if now()[key][0] != "86400001" else None)
    return seen


@scenarios.add
def deleting_records(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(10))
    client = admin(bootstrap)
    seen = {}
    for offset in (4, 2, 11, -1):
        asked = [TopicPartition(topic, 0, offset)]
        seen[str(offset)] = answers(client.delete_records(asked), lambda found: found.low_watermark)
        if offset == 2:
            seen["left"] = {"offsets": [message.offset() for message in read(bootstrap, topic, 6)]}
    return seen


@scenarios.add
def offsets_as_an_admin_lists_them(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    with producer(bootstrap) as sender:
        for moment in (0, 30, 10):
            send(sender, topic, b"v", partition=0, timestamp=T0 + moment)
    client = admin(bootstrap)
    seen = {}
    for label, spec in {
        "earliest": OffsetSpec.earliest(),
        "latest": OffsetSpec.latest(),
        "max timestamp": OffsetSpec.max_timestamp(),
        "from 10": OffsetSpec.for_timestamp(T0 + 10),
        "from 31": OffsetSpec.for_timestamp(T0 + 31),
    }.items():
        asked = {TopicPartition(topic, p): spec for p in (0, 1)}
        level = IsolationLevel.READ_UNCOMMITTED
        found = client.list_offsets(asked, isolation_level=level)
        seen[label] = answers(found, lambda each: [each.offset, each.timestamp, each.leader_epoch])
    return seen


@scenarios.add
def the_cluster(bootstrap: str, unique: str) -> object:
    client = admin(bootstrap)
    found = client.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    metadata = client.list_topics(timeout=10)
    return {
        "cluster id": len(found.cluster_id),
        "controller": found.controller.id if found.controller else None,
        "nodes": [[each.id, each.host, each.port, each.rack] for each in found.nodes],
        "operations": found.authorized_operations,
        "metadata": [metadata.controller_id, [[b.id, b.host, b.port] for b in metadata.brokers.values()]],
    }

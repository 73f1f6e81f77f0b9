"""Scenarios: topics, configs, records and the cluster, as an admin sees and changes them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource

from compat_tests.clients.common import bulk, outcome, wait_for
from compat_tests.clients.kafka_python import scenarios
from compat_tests.clients.kafka_python.tools import admin, create, fill, read
from compat_tests.harness.brokers import PRIVATE


def try_create(client: KafkaAdminClient, name: str, *, validate_only: bool = False, **options: Any) -> Any:
    """Return the answer to one CreateTopics request, also if it is an error."""
    answer = client.create_topics({name: options}, raise_errors=False, validate_only=validate_only)
    return answer["topics"][0]


@scenarios.add
def creating_topics(bootstrap: str, unique: str) -> object:
    seen = {}
    with admin(bootstrap) as client:
        seen["defaults"] = try_create(client, f"{unique}-a")
        seen["sized"] = try_create(client, f"{unique}-b", num_partitions=3, replication_factor=1)
        configs = {"retention.ms": "1000", "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": ".25"}
        seen["configured"] = try_create(client, f"{unique}-c", configs=configs)
        seen["assigned"] = try_create(client, f"{unique}-d", assignments={0: [1], 1: [1]})
        seen["only asked"] = try_create(client, f"{unique}-e", validate_only=True, num_partitions=2)
        seen["again"] = try_create(client, f"{unique}-b")
        names = [f"{unique}-{letter}" for letter in "abcd"]
        client.wait_for_topics(names)
        seen["listed"] = [name for name in sorted(client.list_topics()) if name.startswith(unique)]
        seen["described"] = sorted(
            client.describe_topics([f"{unique}-{letter}" for letter in "bcde"]), key=lambda each: str(each["name"])
        )
    return seen


@scenarios.add
def topics_that_cannot_be_created(bootstrap: str, unique: str) -> object:
    seen = {}
    with admin(bootstrap) as client:
        refused: dict[str, dict[str, Any]] = {
            "no partitions": {"num_partitions": 0},
            "negative": {"num_partitions": -2},
            "no replicas": {"replication_factor": 0},
            "too many replicas": {"replication_factor": 3},
            "unknown broker": {"assignments": {0: [7]}},
            "gap in assignment": {"assignments": {0: [1], 2: [1]}},
            "broker twice": {"assignments": {0: [1, 1]}},
            "sizes and assignment": {"num_partitions": 2, "assignments": {0: [1]}},
            "unknown config": {"configs": {"no.such": "1"}},
            "not a number": {"configs": {"retention.ms": "soon"}},
            "out of range": {"configs": {"segment.bytes": "10"}},
            "not in list": {"configs": {"cleanup.policy": "compress"}},
            "not a boolean": {"configs": {"preallocate": "yes"}},
            "no value": {"configs": {"retention.ms": None}},
            "conflict": {"configs": {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}},
            "tiered": {"configs": {"remote.storage.enable": "true"}},
        }
        for label, options in refused.items():
            seen[label] = try_create(client, unique, **options)
        for name in ("", ".", "..", "a b", "a/b", "ä", "x" * 250):
            seen[f"name {name[:20]!r}"] = try_create(client, name)
        seen["twice in one request"] = outcome(
            lambda: client.create_topics([unique, unique], raise_errors=False)["topics"]
        )
        seen["dots"] = try_create(client, f"{unique}.x_y")
        seen["collides"] = try_create(client, f"{unique}_x_y".replace("-", "-"))
        seen["collides with dot"] = try_create(client, f"{unique}_x.y")
    return seen


@scenarios.add
def deleting_topics(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(10))
    with admin(bootstrap) as client:
        (described,) = client.describe_topics([topic])
        seen = {
            "deleted": client.delete_topics([topic], raise_errors=False)["topics"],
            "again": client.delete_topics([topic], raise_errors=False)["topics"],
            "unknown": client.delete_topics([f"{unique}-none"], raise_errors=False)["topics"],
            "by unknown id": client.delete_topics([UUID(str(described["topic_id"]))], raise_errors=False)["topics"],
            "gone": wait_for("the topic to go", lambda: topic not in client.list_topics()),
            "described": client.describe_topics([topic]),
        }
    # A new topic with the same name is another topic, and it is empty.
    create(bootstrap, topic, 1)
    fill(bootstrap, topic, [b"new"])
    seen["reborn"] = [[record.offset, record.value] for record in read(bootstrap, topic, 1)]
    return seen


@scenarios.add
def adding_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    seen = {}
    with admin(bootstrap) as client:
        for label, name, count in (
            ("same", topic, 2),
            ("fewer", topic, 1),
            ("none", topic, 0),
            ("unknown topic", f"{unique}-none", 3),
        ):
            seen[label] = _results(client.create_partitions({name: count}, raise_errors=False))
        assigned = {topic: {"count": 4, "assignments": [[1], [9]]}}
        seen["wrong assignment"] = _results(client.create_partitions(assigned, raise_errors=False))
        seen["only asked"] = _results(client.create_partitions({topic: 5}, validate_only=True, raise_errors=False))
        seen["more"] = _results(client.create_partitions({topic: 4}, raise_errors=False))

        def leaders() -> list[int]:
            (described,) = client.describe_topics([topic])
            found = [each["leader_id"] for each in described["partitions"]]
            return found if found == [1] * 4 else []

        seen["leaders"] = wait_for("four leaders", leaders)
    fill(bootstrap, topic, [b"v"], partition=3)
    seen["usable"] = [[record.partition, record.value] for record in read(bootstrap, topic, 1, 4)]
    return seen


def _results(answer: Any) -> Any:
    found = answer.to_dict() if hasattr(answer, "to_dict") else answer
    return found.get("results", found)


def topic_configs(client: KafkaAdminClient, topic: str, **options: Any) -> dict[str, Any]:
    """Return the described configs of a topic by name."""
    found = client.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all", **options)
    return dict(found["topic"][topic])


@scenarios.add
def describing_topic_configs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, retention_ms="12345", cleanup_policy="compact", max_message_bytes="2000")
    with admin(bootstrap) as client:
        plain = topic_configs(client, topic)
        synonyms = topic_configs(client, topic, include_synonyms=True)
        some = client.describe_configs([ConfigResource("TOPIC", topic, {"retention.ms": None})], config_filter="all")
        unknown = client.describe_configs([ConfigResource("TOPIC", f"{unique}-none")], config_filter="all")
    for found in (plain, synonyms):
        for entry in found.values():
            entry.pop("documentation")
    return {"plain": plain, "synonyms": synonyms, "some": list(some["topic"][topic]), "unknown": unknown}


@scenarios.add
def describing_broker_configs(bootstrap: str, unique: str) -> object:
    with admin(bootstrap) as client:
        found = client.describe_configs([ConfigResource("BROKER", "1")], config_filter="all", include_synonyms=True)
        configs = dict(found["broker"]["1"])
        other = outcome(lambda: client.describe_configs([ConfigResource("BROKER", "1", {"no.such": None})]))
    for entry in configs.values():
        entry.pop("documentation")
    shared = {name: entry for name, entry in configs.items() if name not in PRIVATE}
    return {"configs": shared, "unknown key": other}


@scenarios.add
def altering_topic_configs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, retention_ms="1000", segment_bytes="2000000")
    seen: dict[str, object] = {}

    def alter(changes: dict[str, Any], **options: Any) -> Any:
        resource = ConfigResource("TOPIC", topic, changes)
        return outcome(lambda: client.alter_configs([resource], incremental=True, **options))

    def now() -> dict[str, str]:
        found = topic_configs(client, topic)
        return {
            name: entry["value"] for name, entry in found.items() if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        }

    with admin(bootstrap) as client:
        seen["set"] = alter({"retention.ms": "2000", "preallocate": "false"})
        seen["after set"] = wait_for("the change", lambda: now() if now().get("retention.ms") == "2000" else None)
        seen["delete"] = alter({"retention.ms": ("DELETE", None), "flush.ms": ("DELETE", None)})
        seen["append"] = alter({"cleanup.policy": ("APPEND", "compact")})
        seen["subtract"] = alter({"cleanup.policy": ("SUBTRACT", "delete")})
        seen["after list"] = wait_for("the change", lambda: now() if now().get("cleanup.policy") == "compact" else None)
        seen["append to number"] = alter({"retention.ms": ("APPEND", "1")})
        seen["bad value"] = alter({"retention.ms": "x"})
        seen["bad key"] = alter({"no.such": "1"})
        seen["one bad of two"] = alter({"segment.ms": "5000", "retention.ms": "x"})
        seen["only asked"] = alter({"segment.ms": "5000"}, validate_only=True)
        seen["whole"] = outcome(
            lambda: client.alter_configs([ConfigResource("TOPIC", topic, {"segment.ms": "70000"})], incremental=False)
        )
        seen["after whole"] = wait_for("the change", lambda: now() if "segment.ms" in now() else None)
        other = ConfigResource("TOPIC", f"{unique}-none", {"segment.ms": "1"})
        seen["unknown topic"] = outcome(lambda: client.alter_configs([other], incremental=True))
    return seen


@scenarios.add
def altering_broker_configs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    seen: dict[str, object] = {}

    def alter(changes: dict[str, Any]) -> Any:
        return outcome(lambda: client.alter_configs([ConfigResource("BROKER", "1", changes)], incremental=True))

    def now() -> dict[str, Any]:
        found = client.describe_configs([ConfigResource("BROKER", "1")], config_filter="all", include_synonyms=True)
        entry = dict(found["broker"]["1"]["log.cleaner.backoff.ms"])
        entry.pop("documentation")
        return entry

    with admin(bootstrap) as client:
        seen["read only"] = alter({"num.partitions": "2"})
        seen["bad value"] = alter({"log.cleaner.backoff.ms": "x"})
        seen["set"] = alter({"log.cleaner.backoff.ms": "16000"})
        seen["described"] = wait_for("the change", lambda: now() if now()["value"] == "16000" else None)
        seen["delete"] = alter({"log.cleaner.backoff.ms": ("DELETE", None)})
        seen["back"] = wait_for("the change", lambda: now() if now()["value"] != "16000" else None)
        seen["topic is untouched"] = topic_configs(client, topic)["retention.ms"]["value"]
    return seen


@scenarios.add
def deleting_records(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(10))
    one, two, none = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic, 9)
    with admin(bootstrap) as client:
        seen: dict[str, object] = {
            "to 4": client.delete_records({one: 4})[one],
            "back to 2": client.delete_records({one: 2})[one],
            "beyond the end": outcome(lambda: client.delete_records({one: 11})),
            "all": client.delete_records({two: -1})[two],
            "no such partition": outcome(lambda: client.delete_records({none: 1}, timeout_ms=2000)),
        }
        seen["left"] = [record.offset for record in read(bootstrap, topic, 6)]
        seen["to the end"] = client.delete_records({one: -1})[one]
    return seen


@scenarios.add
def log_dirs(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, [b"x" * 1000])
    with admin(bootstrap) as client:
        (found,) = client.describe_log_dirs({topic: [0, 1, 5]})
    for each in found["log_dirs"]:
        each["total_bytes"], each["usable_bytes"] = each["total_bytes"] > 0, each["usable_bytes"] > 0
        for described in each["topics"]:
            described["partitions"].sort(key=lambda partition: partition["partition_index"])
    return found


@scenarios.add
def the_cluster(bootstrap: str, unique: str) -> object:
    with admin(bootstrap) as client:
        found = client.describe_cluster()
        found["cluster_id"] = len(found["cluster_id"])
        return found


@scenarios.add
def partitions_page_by_page(bootstrap: str, unique: str) -> object:
    for letter in "abc":
        create(bootstrap, f"{unique}-{letter}", 3)
    names = [f"{unique}-{letter}" for letter in "abc"]
    with admin(bootstrap) as client:
        seen = {"all": client.describe_topic_partitions(names)}
        seen["first four"] = client.describe_topic_partitions(names, response_partition_limit=4)
        seen["unknown"] = outcome(lambda: client.describe_topic_partitions([f"{unique}-none"]))
    return seen


@scenarios.add
def offsets_as_an_admin_lists_them(bootstrap: str, unique: str) -> object:
    from kafka.admin import OffsetSpec

    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(10))
    one = TopicPartition(topic, 0)
    seen = {}
    with admin(bootstrap) as client:
        for spec in ("LATEST", "EARLIEST", "MAX_TIMESTAMP", "EARLIEST_LOCAL", "LATEST_TIERED"):
            found = outcome(client.list_partition_offsets, {one: getattr(OffsetSpec, spec)})
            seen[spec] = list(found[one]) if one in found else found
    return seen


@scenarios.add
def producers_of_a_partition(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(3), enable_idempotence=True)
    one = TopicPartition(topic, 0)
    with admin(bootstrap) as client:
        found = client.describe_producers([one])
    states = found[one]
    return (
        [[type(each).__name__, len(str(each)) > 0] for each in states]
        if isinstance(states, list)
        else str(type(states))
    )

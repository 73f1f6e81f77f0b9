"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.session import Wire
from kbroker.protocol.messages import configs as messages
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ListConfigResourcesRequest,
)
from kbroker.protocol.messages.logs import DescribeLogDirsRequest
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(kind: int, name: str, keys: list[str] | None = None, **fields: Any) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(resources=[DescribeConfigsResource(kind, name, keys)], **fields)


@sequence
def describe_configs(wire: Wire) -> None:
    plain, set_up = wire.topic("plain"), wire.topic("set", retention_ms="1234", cleanup_policy="compact")
    for v in versions(DescribeConfigsRequest):

        def ask(label: str, kind: int, name: str, keys: list[str] | None = None, **fields: Any) -> None:
            answer = wire.quiet(describe(kind, name, keys, **fields), v)  # noqa: B023
            for result in answer.results:
                # Only kbroker has this config, and it differs on the broker that does not walk records.
                result.configs = [c for c in result.configs if c.name != "record.validation"]
            wire.record(label, v, answer)  # noqa: B023

        ask("a topic", TOPIC, plain)
        ask("a topic with synonyms", TOPIC, set_up, include_synonyms=True)
        ask("two keys", TOPIC, set_up, ["retention.ms", "segment.ms", "no.such"])
        ask("no keys", TOPIC, set_up, [])
        ask("unknown topic", TOPIC, "no-such-topic")
        ask("bad topic", TOPIC, "a b")
        ask("empty topic", TOPIC, "")
        ask("a broker's keys", BROKER, "1", ["num.partitions", "log.retention.ms", "log.retention.hours"])
        ask("with synonyms", BROKER, "1", ["log.retention.ms", "log.segment.bytes"], include_synonyms=True)
        ask("another broker", BROKER, "7")
        ask("a broker that is no number", BROKER, "x")
        ask("cluster-wide", BROKER, "")
        ask("what a new cluster has", BROKER, "1", ["min.insync.replicas"], include_synonyms=True)
        ask("what a topic has of it", TOPIC, plain, ["min.insync.replicas"], include_synonyms=True)
        ask("a group", GROUP, "any-group")
        ask("no group", GROUP, "")
        ask("no logger", LOGGER, "")
        ask("another's logger", LOGGER, "9")
        ask("no metrics", METRICS, "")
        ask("a bad type", 3, "x")


@sequence
def alter_configs(wire: Wire) -> None:
    for v in versions(messages.AlterConfigsRequest):
        name = wire.topic(str(v), retention_ms="5")

        def ask(label: str, kind: int, resource: str, validate: bool = False, **configs: Any) -> None:
            entries = [messages.AlterableConfig(k.replace("_", "."), value) for k, value in configs.items()]
            r = messages.AlterConfigsResource(kind, resource, entries)
            wire.ask(label, messages.AlterConfigsRequest(resources=[r], validate_only=validate), v)  # noqa: B023

        ask("replace", TOPIC, name, segment_ms="1000")
        settle(wire, name, {"segment.ms": "1000"})
        ask("validate only", TOPIC, name, validate=True, retention_ms="9")
        wire.record("unchanged", v, configs_of(wire, name))
        ask("unknown key", TOPIC, name, no_such="1")
        ask("bad value", TOPIC, name, retention_ms="x")
        ask("null value", TOPIC, name, retention_ms=None)
        ask("unknown topic", TOPIC, "no-such-topic", retention_ms="1")
        ask("bad topic", TOPIC, "a b", retention_ms="1")
        ask("empty topic", TOPIC, "", retention_ms="1")
        ask("another broker", BROKER, "9", log_retention_ms="1")
        ask("read-only", BROKER, "1", node_id="5")
        ask("bad type", 3, "x", a="b")
        ask("nothing", TOPIC, name)


def settle(wire: Wire, name: str, expected: dict[str, str]) -> None:
    """Wait until a topic's own configs are these."""
    wire.until(lambda: configs_of(wire, name) == expected, f"{expected}")


def configs_of(wire: Wire, name: str) -> dict[str, str]:
    answer = wire.quiet(describe(TOPIC, name), 4)
    return {c.name: c.value for c in answer.results[0].configs if c.config_source == 1}


@sequence
def incremental_alter_configs(wire: Wire) -> None:
    for v in versions(messages.IncrementalAlterConfigsRequest):
        name = wire.topic(str(v), retention_ms="5")

        def ask(label: str, kind: int, resource: str, *ops: Any, validate: bool = False, then: Any = None) -> None:
            entries = [messages.IncrementalConfig(k, op, value) for k, op, value in ops]
            r = messages.IncrementalResource(kind, resource, entries)
            request = messages.IncrementalAlterConfigsRequest(resources=[r], validate_only=validate)
            wire.ask(label, request, v)  # noqa: B023
            if then is not None:
                settle(wire, name, then)  # noqa: B023

        ask("set", TOPIC, name, ("segment.ms", SET, "1000"), then={"retention.ms": "5", "segment.ms": "1000"})
        ask("delete", TOPIC, name, ("segment.ms", DELETE, None), then={"retention.ms": "5"})
        ask("delete what is not set", TOPIC, name, ("flush.ms", DELETE, None), then={"retention.ms": "5"})
        both = {"retention.ms": "5", "cleanup.policy": "delete,compact"}
        ask("append", TOPIC, name, ("cleanup.policy", APPEND, "compact"), then=both)
        ask("append again", TOPIC, name, ("cleanup.policy", APPEND, "compact"), then=both)
        one = {"retention.ms": "5", "cleanup.policy": "compact"}
        ask("subtract", TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), then=one)
        ask("subtract what is not there", TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), then=one)
        ask("append to a number", TOPIC, name, ("retention.ms", APPEND, "5"))
        ask("append nonsense", TOPIC, name, ("cleanup.policy", APPEND, "burn"))
        ask("set nonsense", TOPIC, name, ("retention.ms", SET, "x"))
        ask("set null", TOPIC, name, ("retention.ms", SET, None))
        ask("unknown key", TOPIC, name, ("no.such", SET, "1"))
        ask("delete unknown key", TOPIC, name, ("no.such", DELETE, None))
        ask("duplicate key", TOPIC, name, ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
        ask("validate only", TOPIC, name, ("retention.ms", SET, "77"), validate=True)
        ask("bad operation", TOPIC, name, ("retention.ms", 9, "77"))
        wire.record("unchanged", v, configs_of(wire, name))
        ask("one good, one bad", TOPIC, name, ("retention.ms", SET, "78"), ("no.such", SET, "1"))
        ask("unknown topic", TOPIC, "no-such-topic", ("retention.ms", SET, "1"))
        ask("bad topic name", TOPIC, "a b", ("retention.ms", SET, "1"))
        ask("empty topic name", TOPIC, "", ("retention.ms", SET, "1"))
        ask("another broker", BROKER, "9", ("log.retention.ms", SET, "1"))
        ask("broker no number", BROKER, "x", ("log.retention.ms", SET, "1"))
        ask("read-only", BROKER, "1", ("node.id", SET, "1"))
        ask("group", GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"))
        ask("group, bad", GROUP, "g", ("consumer.session.timeout.ms", SET, "1"))
        ask("group, unknown key", GROUP, "g", ("no.such", SET, "1"))
        ask("group, delete", GROUP, "g", ("consumer.session.timeout.ms", DELETE, None))
        ask("empty group", GROUP, "", ("consumer.session.timeout.ms", SET, "46000"))
        for odd in ("a/b", "<default>", "..", "/", "%2F", " "):
            ask(f"group {odd}", GROUP, odd, ("consumer.session.timeout.ms", SET, "46000"))
            ask(f"group {odd}, delete", GROUP, odd, ("consumer.session.timeout.ms", DELETE, None))
        ask("bad type", 3, "x", ("a", SET, "b"))


@sequence
def dynamic_broker_configs(wire: Wire) -> None:
    name = wire.topic("t")

    def change(resource: str, op: int, value: str | None, key: str = "log.retention.ms") -> None:
        r = messages.IncrementalResource(BROKER, resource, [messages.IncrementalConfig(key, op, value)])
        wire.ask(f"{op} {key} of {resource or 'all'} to {value}", messages.IncrementalAlterConfigsRequest([r]), 1)

    def shown(label: str, expected: str) -> None:
        def value() -> str | None:
            answer = wire.quiet(describe(TOPIC, name, ["retention.ms"], include_synonyms=True), 4)
            found: str | None = answer.results[0].configs[0].value
            return found

        wire.until(lambda: value() == expected, f"retention.ms={expected}")
        wire.ask(label, describe(TOPIC, name, ["retention.ms"], include_synonyms=True), 4)
        wire.ask(f"{label}, broker", describe(BROKER, "1", ["log.retention.ms"], include_synonyms=True), 4)
        wire.ask(f"{label}, all", describe(BROKER, "", include_synonyms=True), 4)

    change("", SET, "7000")
    shown("cluster-wide", "7000")
    change("1", SET, "8000")
    shown("per broker", "8000")
    change("1", DELETE, None)
    shown("back to cluster-wide", "7000")
    change("", DELETE, None)
    shown("back to the default", "604800000")
    change("", SET, "x")
    change("1", SET, "0")
    for value in ("x", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:1,x"):
        change("1", SET, value, "max.connections.per.ip.overrides")


@sequence
def broker_configs_that_contradict_each_other(wire: Wire) -> None:
    """Configs that contradict each other; the valid changes are only validated, so nothing changes."""
    for changes in (
        {"max.connections.per.ip": "0"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
        {"max.connections.per.ip.overrides": "a b:5"},
        {"max.connections": "0"},
        {"listener.name.plaintext.max.connections": "0"},
        {"listeners": "OTHER://127.0.0.1:0"},
        {"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"},
        {"max.connections.per.ip.overrides": "host:5,::1:7"},
        {"log.cleaner.dedupe.buffer.size": "1048576"},
        {"log.cleaner.dedupe.buffer.size": "1048577"},
        {"log.cleaner.dedupe.buffer.size": "2097152", "log.cleaner.threads": "2"},
        {"log.cleaner.threads": "0"},
        {"log.cleaner.threads": "2"},
        {"log.cleaner.threads": "3"},
        {"num.io.threads": "1"},
        {"num.io.threads": "17"},
        {"num.replica.fetchers": "3"},
        {"log.roll.ms": "0"},
        {"log.roll.jitter.ms": "-1"},
        {"log.retention.ms": "0"},
        {"producer.id.expiration.ms": "0"},
        {"log.cleaner.min.compaction.lag.ms": "10", "log.cleaner.max.compaction.lag.ms": "5"},
        {"log.local.retention.ms": "900000000000"},
        {"log.local.retention.ms": "-1"},
        {"log.retention.bytes": "5", "log.local.retention.bytes": "6"},
        {"message.max.bytes": "-1"},
        {"group.coordinator.cached.buffer.max.bytes": "5"},
    ):
        for resource in ("1", ""):
            entries = [messages.IncrementalConfig(key, SET, value) for key, value in changes.items()]
            r = messages.IncrementalResource(BROKER, resource, entries)
            request = messages.IncrementalAlterConfigsRequest(resources=[r], validate_only=True)
            wire.ask(f"{changes} of {resource or 'all'}", request, 1)


@sequence
def levels_of_loggers(wire: Wire) -> None:
    def ask(label: str, *ops: Any, resource: str = "1", validate: bool = False, logger: str = "root") -> None:
        entries = [messages.IncrementalConfig(key, op, value) for key, op, value in ops]
        r = messages.IncrementalResource(LOGGER, resource, entries)
        wire.ask(label, messages.IncrementalAlterConfigsRequest(resources=[r], validate_only=validate), 1)
        for v in versions(DescribeConfigsRequest):
            request = describe(LOGGER, "1", [logger], include_synonyms=True, include_documentation=True)
            wire.ask(f"{label}, then", request, v)

    for level in ("DEBUG", "WARN", "ERROR", "FATAL", "TRACE", "INFO"):
        ask(f"set {level}", ("root", SET, level))
    ask("set, asked only", ("root", SET, "ERROR"), validate=True)
    for level in ("warn", "OFF", "ALL", "WARNING", "", "7"):
        ask(f"set {level!r}", ("root", SET, level))
    ask("set null", ("root", SET, None))
    ask("delete", ("root", DELETE, None))
    ask("append", ("root", APPEND, "INFO"))
    ask("subtract", ("root", SUBTRACT, "INFO"))
    ask("unknown", ("no.such.logger", SET, "INFO"))
    ask("delete unknown", ("no.such.logger", DELETE, None))
    ask("twice", ("root", SET, "INFO"), ("root", SET, "WARN"))
    ask("one good, one bad", ("root", SET, "ERROR"), ("no.such.logger", SET, "INFO"))
    ask("nothing")
    for resource in ("", "x", "7"):
        ask(f"of {resource!r}", ("root", SET, "INFO"), resource=resource)
    requests = "kafka.request.logger"
    for level in ("ERROR", "LOUD"):
        ask(f"requests {level}", (requests, SET, level), logger=requests)
    ask("requests inherit", (requests, DELETE, None), logger=requests)
    ask("requests follow", ("root", SET, "INFO"), logger=requests)
    r = messages.AlterConfigsResource(LOGGER, "1", [messages.AlterableConfig("root", "INFO")])
    wire.ask("replace", messages.AlterConfigsRequest(resources=[r]), 2)


@sequence
def cordoned_log_dirs(wire: Wire) -> None:
    def change(value: str | None, resource: str = "1") -> None:
        entry = messages.IncrementalConfig("cordoned.log.dirs", DELETE if value is None else SET, value)
        r = messages.IncrementalResource(BROKER, resource, [entry])
        wire.ask(f"of {resource or 'all'} to {value}", messages.IncrementalAlterConfigsRequest([r]), 1)

    def create(label: str) -> None:
        topics = [CreatableTopic(f"{wire.name}-{label}", 1, 1)]
        wire.ask(f"create, {label}", CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=True), 4)
        for replicas in ([1], [1, 1], [1, 2], [0, 1], []):
            topics = [CreatableTopic(f"{wire.name}-{label}", -1, -1, [CreatableReplicaAssignment(0, replicas)])]
            asked = CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=True)
            wire.ask(f"create on {replicas}, {label}", asked, 4)
            moved = [ReassignableTopic(held, [ReassignablePartition(0, replicas)])]
            wire.ask(f"move to {replicas}, {label}", AlterPartitionReassignmentsRequest(topics=moved), 0)

    held = wire.topic("held")

    def cordoned() -> bool:
        answer = wire.quiet(DescribeLogDirsRequest(topics=[]), 5)
        return bool(answer.results[0].is_cordoned)

    change("/nowhere")
    change("*", "")
    change("*,/nowhere")
    change("*")
    wire.until(cordoned, "a cordoned directory")
    wire.until(lambda: wire.quiet(probe(wire), 4).topics[0].error_code != 0, "no place for a topic")
    create("all cordoned")
    change(None)
    wire.until(lambda: not cordoned(), "a directory that is free again")
    wire.until(lambda: wire.quiet(probe(wire), 4).topics[0].error_code == 0, "a place for a topic")
    create("free again")


def probe(wire: Wire) -> CreateTopicsRequest:
    """Ask whether a topic could be created, with validateOnly."""
    topics = [CreatableTopic(f"{wire.name}-probe", 1, 1)]
    return CreateTopicsRequest(topics=topics, timeout_ms=5000, validate_only=True)


def without_subscriptions(wire: Wire) -> None:
    """Remove the subscriptions to clients' metrics that other tests have left."""

    def there() -> list[str]:
        return [each.resource_name for each in wire.quiet(ListConfigResourcesRequest(), 0).config_resources]

    keys = [messages.IncrementalConfig(key, DELETE, None) for key in ("metrics", "interval.ms", "match")]
    for name in there():
        resource = messages.IncrementalResource(METRICS, name, keys)
        wire.quiet(messages.IncrementalAlterConfigsRequest(resources=[resource]), 1)
    wire.until(lambda: not there(), "no subscription to be there")


@sequence
def list_config_resources(wire: Wire) -> None:
    without_subscriptions(wire)
    wire.ask("metrics", ListConfigResourcesRequest(), 0)
    for kinds in ([BROKER], [LOGGER], [METRICS], [77], [BROKER, 77]):
        wire.ask(f"types {kinds}", ListConfigResourcesRequest(resource_types=kinds), 1)

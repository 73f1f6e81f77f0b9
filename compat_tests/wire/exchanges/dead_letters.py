"""Dead letters of share groups (KIP-1191): their contents, the topics that may receive them, and their configs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from compat_tests.wire.exchanges import sequence
from compat_tests.wire.exchanges.fetch import part, request
from compat_tests.wire.exchanges.produce import STAMP, batch, put
from compat_tests.wire.exchanges.share_groups import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    Member,
    beat,
    configure,
    joined,
)
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.fetch import FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch, iter_batches, read_records

BROKER, TOPIC = 4, 2
NAME = "errors.deadletterqueue.topic.name"
ENABLE = "errors.deadletterqueue.group.enable"
AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
PREFIX = "errors.deadletterqueue.topic.name.prefix"


def letters_topic(
    wire: Wire, suffix: str, partitions: int = 1, prefix: str = "dlq.", configs: Mapping[str, str] | None = None
) -> str:
    """Create a dead letter topic."""
    name = f"{prefix}{wire.name}-{suffix}"
    own = {ENABLE: "true", **(configs or {})}
    topic = CreatableTopic(
        name, partitions, 1, configs=[CreatableTopicConfig(key, value) for key, value in own.items()]
    )
    answer = wire.quiet(CreateTopicsRequest([topic], 10_000), 7)
    assert answer.topics[0].error_code == 0, answer
    wire.until(lambda: wire._led(name, partitions), f"{name} has leaders")
    return name


def end_offsets(wire: Wire, topic: str, partitions: int) -> list[int]:
    asked = [ListOffsetsPartition(index, timestamp=-1) for index in range(partitions)]
    answer = wire.quiet(ListOffsetsRequest(topics=[ListOffsetsTopic(topic, asked)]), 5)
    return [each.offset for each in answer.topics[0].partitions]


def letters(wire: Wire, topic: str, count: int, partitions: int = 1) -> list[Any]:
    """Wait for `count` dead letters; return them without timestamps and offsets, sorted by their records' offsets."""
    wire.until(lambda: sum(end_offsets(wire, topic, partitions)) >= count, f"{count} dead letters in {topic}")
    now_ms = time.time() * 1000
    found: list[tuple[int, Any]] = []
    for index in range(partitions):
        asked = [FetchTopic(topic=topic, partitions=[part(0, index)])]
        answer = wire.quiet(request(asked, max_bytes=1 << 22), 12)
        raw = bytes(answer.responses[0].partitions[0].records or b"")
        for at, header in iter_batches(raw):
            of_batch = [
                header.magic,
                header.attributes,
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
            ]
            for record in read_records(raw[at : at + header.size], max_bytes=1 << 24):
                assert abs(record.timestamp - now_ms) < 60_000, "the time at which it was given up"
                about = int(dict(record.headers)["__dlq.errors.offset"] or b"")
                found.append((about, [index, of_batch, record.key, record.value, record.headers]))
    return [plain for _, plain in sorted(found, key=lambda each: each[0])]


def passed(wire: Wire, group: str, topic: str, offset: int, index: int = 0) -> None:
    """Wait until no record below an offset is left for the group."""
    topics = [DescribeShareGroupOffsetsRequestTopic(topic, [index])]
    asked = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, topics)])

    def is_past() -> bool:
        partition = wire.quiet(asked, 1).groups[0].topics[0].partitions[0]
        return bool(partition.start_offset >= offset or partition.lag == 0)

    wire.until(is_past, f"the group {group} is past {offset}")


@sequence
def share_dead_letters(wire: Wire) -> None:
    """Records that are rejected, or delivered too often: headers, with and without a copy."""
    for copies in ("false", "true"):
        group, topic = f"{wire.name}-{copies}", wire.topic(f"t-{copies}")
        target = letters_topic(wire, copies)
        wire.coordinator(group)
        configure(
            wire, group, share_auto_offset_reset="earliest", share_delivery_count_limit="2",
            errors_deadletterqueue_topic_name=target, errors_deadletterqueue_copy_record_enable=copies,
        )  # fmt: skip
        joined(wire, group, "a", topic)
        own = [(STAMP + at, b"k%d" % at if at else None, b"v%d" % at, (("h", b"x"),)) for at in range(5)]
        put(wire, topic, build_batch(own))
        put(wire, topic, build_batch([(STAMP, b"gzip", None, ()), (STAMP, None, b"", ())], codec=1))
        one = Member(wire, group, "a", topic)
        one.fetch(f"opens a session, {copies}")
        one.acknowledge(f"rejects some, {copies}", (0, 4, [REJECT, ACCEPT, REJECT, RELEASE, GAP]), (5, 6, [REJECT]))
        wire.record(f"rejected, {copies}", None, letters(wire, target, 4))
        one.fetch(f"gets the released one, {copies}", max_wait_ms=5000)
        one.acknowledge(f"releases it for the last time, {copies}", (3, 3, [RELEASE]))
        wire.record(f"delivered too often, {copies}", None, letters(wire, target, 5))
        passed(wire, group, topic, 7)
        one.fetch(f"ends its session, {copies}", epoch=-1)
        wire.quiet(beat(group, "a", -1), 1)


@sequence
def share_dead_letters_partitions(wire: Wire) -> None:
    """The partition is the source's, modulo the number of partitions.

    A reader keeps a batch until its session expires.
    """
    group, topic = wire.name, wire.topic()
    target = letters_topic(wire, "few", 3)
    wire.coordinator(group)
    configure(
        wire, group, share_auto_offset_reset="earliest", share_delivery_count_limit="2",
        errors_deadletterqueue_topic_name=target, errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    joined(wire, group, "a", topic)
    put(wire, topic, batch(3))
    for number in (1, 2):
        one = Member(wire, group, "a", topic)
        one.fetch(f"delivery {number}", max_wait_ms=5000)
        one.fetch(f"the session {number} ends", epoch=-1)
    wire.record("letters", None, letters(wire, target, 3, 3))
    passed(wire, group, topic, 3)


@sequence
def share_dead_letters_refused(wire: Wire) -> None:
    """Topics that accept no dead letters: the records are archived without them."""
    cases: dict[str, tuple[str | None, dict[str, str]]] = {
        "missing": (None, {}),
        "prefix": ("other.", {}),
        "not-allowed": ("dlq.", {ENABLE: "false"}),
        "too-small": ("dlq.", {"max.message.bytes": "100"}),
        "compacted": ("dlq.", {"cleanup.policy": "compact"}),
    }
    for name, (prefix, configs) in cases.items():
        group, topic = f"{wire.name}-{name}", wire.topic(name)
        target = f"dlq.{wire.name}-none"
        if prefix is not None:
            target = letters_topic(wire, name, prefix=prefix, configs=configs)
        wire.coordinator(group)
        configure(wire, group, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=target)
        joined(wire, group, "a", topic)
        put(wire, topic, batch(2))
        one = Member(wire, group, "a", topic)
        one.fetch(f"opens a session, {name}")
        one.acknowledge(f"rejects, {name}", (0, 1, [REJECT]))
        passed(wire, group, topic, 2)
        if prefix is not None:
            wire.record(f"nothing is written, {name}", None, end_offsets(wire, target, 1))
        one.fetch(f"ends its session, {name}", epoch=-1)


@sequence
def share_dead_letters_created(wire: Wire) -> None:
    """If it is allowed, a missing topic is created. Without a prefix its name may be any name."""
    group, topic, target = wire.name, wire.topic(), f"letters-of-{wire.name}"
    cluster_wide(wire, (AUTO_CREATE, 0, "true"), (PREFIX, 0, ""))
    wire.coordinator(group)
    configure(wire, group, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=target)
    joined(wire, group, "a", topic)
    put(wire, topic, batch(2))
    one = Member(wire, group, "a", topic)
    one.fetch("opens a session")
    one.acknowledge("rejects", (0, 1, [REJECT]))
    passed(wire, group, topic, 2)
    wire.until(lambda: wire._led(target, 1), "the topic is created")
    wire.record("letters", None, letters(wire, target, 2))
    keys = [ENABLE, "message.timestamp.type", "max.message.bytes"]
    asked = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, target, keys)], include_synonyms=False)
    wire.ask("its configs", asked, 4)
    cluster_wide(wire, (AUTO_CREATE, 1, None), (PREFIX, 1, None))


def cluster_wide(wire: Wire, *changes: tuple[str, int, str | None]) -> None:
    resource = IncrementalResource(BROKER, "", [IncrementalConfig(*each) for each in changes])
    assert wire.quiet(IncrementalAlterConfigsRequest([resource]), 1).responses[0].error_code == 0


@sequence
def share_dead_letter_configs(wire: Wire) -> None:
    """Values that AlterConfigs accepts for the keys of groups, topics and brokers."""

    def ask(label: str, kind: int, name: str, key: str, value: str | None) -> None:
        resource = IncrementalResource(kind, name, [IncrementalConfig(key, 0, value)])
        wire.ask(label, IncrementalAlterConfigsRequest([resource]), 1)

    group, topic = wire.name, wire.topic()
    for value in ("__letters", "dlq.x", "other.x", "", "no such name!", "dlq.", " dlq.x"):
        ask(f"the name {value!r}", GROUP, group, NAME, value)
    for value in ("true", "TRUE", "yes"):
        ask(f"copies {value}", GROUP, group, "errors.deadletterqueue.copy.record.enable", value)
        ask(f"allows {value}", TOPIC, topic, ENABLE, value)
        ask(f"creates {value}", BROKER, "", AUTO_CREATE, value)
    for value in ("", "my.", "__"):
        ask(f"the prefix {value!r}", BROKER, "", PREFIX, value)
    cluster_wide(wire, (AUTO_CREATE, 1, None), (PREFIX, 1, None))
    keys = [NAME, "errors.deadletterqueue.copy.record.enable"]
    asked = DescribeConfigsRequest([DescribeConfigsResource(GROUP, group, keys)], include_synonyms=True)
    wire.ask("described", asked, 4)


@sequence
def share_dead_letters_large(wire: Wire) -> None:
    """Copies and max.message.bytes: several batches, records that exceed the limit, and large batches."""
    sizes = {"several": [900] * 5, "larger": [10, 5000, 10], "nearly": [10, 1950, 10, 10]}
    for name, codec in (("several", 0), ("larger", 0), ("nearly", 0), ("packed", 1)):
        group, topic = f"{wire.name}-{name}", wire.topic(name)
        target = letters_topic(wire, name, configs={"max.message.bytes": "2000"})
        wire.coordinator(group)
        configure(
            wire, group, share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name=target,
            errors_deadletterqueue_copy_record_enable="true",
        )  # fmt: skip
        joined(wire, group, "a", topic)
        values = [bytes([65 + at]) * size for at, size in enumerate(sizes.get(name, [300] * 10))]
        put(wire, topic, build_batch([(STAMP, b"k", value, ()) for value in values], codec=codec))
        one = Member(wire, group, "a", topic)
        one.fetch(f"opens a session, {name}")
        one.acknowledge(f"rejects all, {name}", (0, len(values) - 1, [REJECT]))
        passed(wire, group, topic, len(values))
        wire.record(f"letters, {name}", None, letters(wire, target, 0))
        one.fetch(f"ends its session, {name}", epoch=-1)

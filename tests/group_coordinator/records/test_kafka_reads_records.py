"""Apache Kafka's own tool reads what a consumer group writes into `__consumer_offsets`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness.jvm import dump_log_segments
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.group_coordinator.config import GroupConfig
from kbroker.protocol.records import build_batch
from kbroker.protocol.wire import uuid_text
from tests.group_coordinator.consumer.test_migration import classic
from tests.group_coordinator.consumer_context import Consumer, ConsumerContext, converge, topic_id
from tests.log.builders import NOW, committed, open_log

pytestmark = pytest.mark.java

LINE = re.compile(r"key: (\{.*\}) payload: (.*)$")


def read_by_kafka(records: list[CoordinatorRecord], directory: Path, libs: Path) -> list[tuple[str, Any, Any]]:
    """Return (record type, key, value) of each record, as Kafka's tool prints them."""
    log = open_log(directory)
    for record in records:
        log.append_as_leader(build_batch([(NOW, record.key, record.value, ())]), 0, NOW)
    committed(log)
    log.close()
    text = dump_log_segments(libs, list(directory.glob("*.log")), "--deep-iteration", "--offsets-decoder")
    found = []
    for line in text.splitlines():
        match = LINE.search(line)
        if match:
            key = json.loads(match[1])
            value = None if match[2] == "<DELETE>" else json.loads(match[2])["data"]
            found.append((str(key["type"]), key["data"], value))
    return found


def test_apache_kafka_reads_every_record(tmp_path: Path, kafka_libs: Path) -> None:
    c = ConsumerContext(GroupConfig(consumer_assignment_interval_ms=0))
    c.create("t", 4)
    old = classic(c)
    a = Consumer(c, "a", "t", instance_id="i", rack_id="r", subscribed_topic_regex="t.*", server_assignor="range")
    converge([a])
    c.leave((old, None))
    converge([a])
    a.leave()
    found = read_by_kafka(c.log, tmp_path / "__consumer_offsets-0", kafka_libs)
    assert len(found) == len(c.log)
    assert {kind for kind, _, _ in found} == {"2", "3", "5", "6", "7", "8", "16"}

    def last(kind: str, member: str | None = None) -> Any:
        """Return the last value that is not a tombstone."""
        values = [
            value
            for each, key, value in found
            if each == kind and value is not None and key.get("memberId") in (None, member)
        ]
        return values[-1]

    t = uuid_text(topic_id("t"))
    group = c.consumer_group()
    assert last("3") == {"epoch": group.epoch}, "nobody subscribes to anything: the hash is 0, which is left out"
    hashes = {value["metadataHash"] for kind, _, value in found if kind == "3" and value and "metadataHash" in value}
    assert hashes == {c.topics.hash_of(["t"])}
    assert last("6") == {"assignmentEpoch": group.epoch}, "the target of nobody: its time is 0, which is left out"
    times = [value["assignmentTimestamp"] for kind, _, value in found if kind == "6" and "assignmentTimestamp" in value]
    assert times
    assert max(times) <= c.now
    metadata = last("5", "a")
    assert (metadata["instanceId"], metadata["rackId"], metadata["serverAssignor"]) == ("i", "r", "range")
    assert (metadata["subscribedTopicNames"], metadata["subscribedTopicRegex"]) == (["t"], "t.*")
    assert metadata["classicMemberMetadata"] is None, "a member of the consumer protocol"
    assert [p["name"] for p in last("5", old)["classicMemberMetadata"]["supportedProtocols"]] == ["range", "roundrobin"]
    assert last("7", "a") == {"topicPartitions": [{"topicId": t, "partitions": [0, 1, 2, 3]}]}
    current = last("8", "a")
    assert (current["state"], current["partitionsPendingRevocation"]) == (0, [])
    (held,) = current["assignedPartitions"]
    assert (held["topicId"], sorted(held["partitions"])) == (t, [0, 1, 2, 3])
    assert len(held["assignmentEpochs"]) == 4
    assert last("16")["topics"] == ["t"]
    assert found[-1][2] is not None
    assert all(value is None for kind, key, value in found[-6:-2] if kind in ("5", "7", "8"))

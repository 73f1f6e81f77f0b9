"""Replays the records of a consumer group that Apache Kafka wrote into `__consumer_offsets`: the same group results."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.wire.exchanges.consumer_groups import beat, enter, owned
from compat_tests.wire.session import Wire
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.describe import describe_consumer_group
from kbroker.group_coordinator.shard import GroupShard
from kbroker.group_coordinator.topics import Topics
from kbroker.long_work import whole
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.groups import FindCoordinatorRequest

pytestmark = pytest.mark.java

DEADLINE_SECONDS = 60


def records_of_offsets_topic(bootstrap: str) -> list[tuple[bytes, bytes | None]]:
    """Return all records of `__consumer_offsets`, those of each partition in order."""
    config = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False}
    reader = Consumer({**config, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    try:
        partitions = reader.list_topics("__consumer_offsets", 30).topics["__consumer_offsets"].partitions
        reader.assign([TopicPartition("__consumer_offsets", index, 0) for index in partitions])
        found, ended = [], 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while ended < len(partitions):
            assert time.monotonic() < deadline
            message = reader.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                ended += 1
                continue
            key = message.key()
            assert isinstance(key, bytes)
            value = message.value()
            found.append((key, None if value is None else bytes(value)))
        return found
    finally:
        reader.close()


def test_a_group_that_kafka_wrote(brokers: dict[str, BrokerProcess]) -> None:
    wire = Wire(brokers["apache"].bootstrap, "group-records")
    try:
        group, topic = wire.name, wire.topic(partitions=4)
        wire.coordinator(group)
        have = owned(wire.quiet(enter(group, "a", topic, instance_id="i", rack_id="r"), 1))
        pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": f"{topic}.*"}
        wire.until(lambda: wire.quiet(enter(group, "b", **pattern), 1).member_epoch > 2, "a target for two")
        wire.quiet(beat(group, "a", 2, topic_partitions=have), 1)  # it has to give up now, and has not yet
        wire.quiet(enter(group, "c", topic), 1)
        wire.quiet(beat(group, "c", -1), 1)
        (theirs,) = wire.quiet(ConsumerGroupDescribeRequest([group]), 1).groups
        topic_id = wire.topic_id(topic)
        assert wire.quiet(FindCoordinatorRequest(key=group), 2).error_code == 0
    finally:
        wire.close()
    state = ClusterState("c").with_topic(TopicState(topic, topic_id, (PartitionState((1,), (1,), 1, 0),) * 4))
    topics = Topics(state)
    shard = GroupShard(GroupConfig(), topics)
    for offset, (key, value) in enumerate(records_of_offsets_topic(brokers["apache"].bootstrap)):
        if group.encode() in key:
            shard.replay(offset, -1, key, value)
    ours = whole(describe_consumer_group(shard.groups, group, "uniform", topics))
    for described in (ours, theirs):
        described.members.sort(key=lambda member: member.member_id)
        for member in described.members:
            for assignment in (member.assignment, member.target_assignment):
                for partitions in assignment.topic_partitions:
                    partitions.partitions.sort()
    assert len(ours.members) == 2
    assert ours == theirs

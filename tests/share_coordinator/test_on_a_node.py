"""The share coordinator on a node: its requests, topic, rights and restarts, and its absence without its feature."""

from __future__ import annotations

import asyncio

from kbroker.cluster_state import SHARE_STATE_TOPIC
from kbroker.controller.features import SHARE_VERSION
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages import share_state as messages
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.wire import uuid_text
from tests.security.authorizer.served import ADMIN, asynchronous, codes, serving

KEYS = range(83, 88)
SETTINGS = {"share_coordinator_state_topic_num_partitions": "3"}


async def enabled(served):
    """Create topic `t`; return its id."""
    controller = served.node.controller
    controller.auto_create("t")
    await served.settled()
    return controller.state.topics["t"].topic_id


async def loaded(served):
    """Wait until the coordinators have loaded their partitions."""
    for _ in range(100_000):
        if served.node.shares.is_loaded and served.node.groups.is_loaded:
            return
        await asyncio.sleep(0)
    raise AssertionError("not loaded")


async def found(served, key, principal=ADMIN):
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    return (await served.ask(request, 6, principal)).coordinators[0]


def initialize(topic_id, *partitions, group="g", epoch=1, start=5):
    asked = [
        messages.InitializedPartition(partition=each, state_epoch=epoch, start_offset=start) for each in partitions
    ]
    topic = messages.InitializedTopic(topic_id=topic_id, partitions=asked)
    return messages.InitializeShareGroupStateRequest(group_id=group, topics=[topic])


def read(topic_id, partition=0, leader_epoch=0, group="g"):
    asked = messages.PartitionToRead(partition=partition, leader_epoch=leader_epoch)
    topic = messages.TopicToRead(topic_id=topic_id, partitions=[asked])
    return messages.ReadShareGroupStateRequest(group_id=group, topics=[topic])


def write(topic_id, *batches, start=-1, count=-1, epoch=1):
    asked = messages.PartitionToWrite(
        partition=0,
        state_epoch=epoch,
        leader_epoch=0,
        start_offset=start,
        delivery_complete_count=count,
        state_batches=[messages.StateBatch(*each) for each in batches],
    )
    topic = messages.TopicToWrite(topic_id=topic_id, partitions=[asked])
    return messages.WriteShareGroupStateRequest(group_id="g", topics=[topic])


def delete(topic_id):
    topic = messages.TopicToDelete(topic_id=topic_id, partitions=[messages.PartitionToDelete(partition=0)])
    return messages.DeleteShareGroupStateRequest(group_id="g", topics=[topic])


def summary(topic_id):
    asked = messages.PartitionToRead(partition=0, leader_epoch=0)
    topic = messages.TopicToRead(topic_id=topic_id, partitions=[asked])
    return messages.ReadShareGroupStateSummaryRequest(group_id="g", topics=[topic])


@asynchronous
async def test_without_the_feature_there_is_no_share_coordinator(tmp_path):
    async with serving(tmp_path) as served:
        controller = served.node.controller
        controller.replace_features({**controller.state.features, SHARE_VERSION: 0})
        await served.settled()
        answer = await served.ask(
            ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4, ADMIN
        )
        assert not {each.api_key for each in answer.api_keys} & set(KEYS)
        assert SHARE_VERSION not in {each.name for each in answer.finalized_features}
        unsupported = {ErrorCode.UNSUPPORTED_VERSION}
        assert codes(await served.ask(initialize(b"t" * 16, 0), 0, ADMIN)) == unsupported
        assert codes(await served.ask(write(b"t" * 16), 1, ADMIN)) == unsupported
        key = f"g:{uuid_text(b't' * 16)}:0"
        assert (await found(served, key)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert SHARE_STATE_TOPIC not in served.node.controller.state.topics


@asynchronous
async def test_a_state_survives_a_restart(tmp_path):
    async with serving(tmp_path, **SETTINGS) as served:
        topic_id = await enabled(served)
        assert codes(await served.ask(initialize(topic_id, 0), 0, ADMIN)) == {ErrorCode.NOT_COORDINATOR}
        place = await found(served, f"g:{uuid_text(topic_id)}:0")
        assert (place.error_code, place.node_id) == (0, served.node.node_id)
        topic = served.node.controller.state.topics[SHARE_STATE_TOPIC]
        assert len(topic.partitions) == 3
        assert dict(topic.configs) == {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": "2",
            "retention.ms": "-1",
            "segment.bytes": "104857600",
        }
        assert codes(await served.ask(initialize(topic_id, 0), 0, ADMIN)) == {0}
        assert codes(await served.ask(write(topic_id, (5, 9, 2, 1), (10, 11, 0, 2), start=5, count=5), 1, ADMIN)) == {0}
    async with serving(tmp_path, **SETTINGS) as served:
        await loaded(served)
        (topic,) = (await served.ask(read(topic_id), 0, ADMIN)).results
        (state,) = topic.partitions
        assert (state.error_code, state.state_epoch, state.start_offset) == (0, 1, 5)
        assert state.state_batches == [messages.StateBatch(5, 9, 2, 1), messages.StateBatch(10, 11, 0, 2)]
        (topic,) = (await served.ask(summary(topic_id), 1, ADMIN)).results
        assert (topic.partitions[0].start_offset, topic.partitions[0].delivery_complete_count) == (5, 5)
        assert codes(await served.ask(delete(topic_id), 0, ADMIN)) == {0}
        assert codes(await served.ask(read(topic_id), 0, ADMIN)) == {ErrorCode.INVALID_REQUEST}


@asynchronous
async def test_errors_belong_to_partitions(tmp_path):
    async with serving(tmp_path, **SETTINGS) as served:
        topic_id = await enabled(served)
        await found(served, f"g:{uuid_text(topic_id)}:0")
        (topic,) = (await served.ask(initialize(topic_id, 0, 7, -1), 0, ADMIN)).results
        by_index = {each.partition: each.error_code for each in topic.partitions}
        assert by_index == {0: 0, 7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1: ErrorCode.INVALID_REQUEST}
        (topic,) = (await served.ask(read(topic_id, 0, 0, "h"), 0, ADMIN)).results
        text = "Read operation on uninitialized share partition not allowed."
        assert topic.partitions[0].error_message == text
        assert (await served.ask(initialize(topic_id, 0, group=""), 0, ADMIN)).results == []
        empty = messages.ReadShareGroupStateRequest(group_id="g", topics=[messages.TopicToRead(topic_id=topic_id)])
        assert (await served.ask(empty, 0, ADMIN)).results == []


@asynchronous
async def test_only_brokers_may_ask(tmp_path):
    async with serving(tmp_path, **SETTINGS) as served:
        topic_id = await enabled(served)
        refused = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        for request in (initialize(topic_id, 0), read(topic_id), write(topic_id), delete(topic_id), summary(topic_id)):
            assert codes(await served.ask(request, 0)) == refused


@asynchronous
async def test_a_deleted_topic_leaves_no_state(tmp_path):
    async with serving(tmp_path, **SETTINGS) as served:
        topic_id = await enabled(served)
        await found(served, f"g:{uuid_text(topic_id)}:0")
        await served.ask(initialize(topic_id, 0), 0, ADMIN)
        shares = served.node.shares
        assert sum(1 for shard in shares.loaded() for _ in shard.states()) == 1
        served.node.controller.delete_topics(["t"])
        await served.settled()
        assert not [each for shard in shares.loaded() for each in shard.states()]


@asynchronous
async def test_keys_of_share_partitions_are_checked(tmp_path):
    async with serving(tmp_path, **SETTINGS) as served:
        topic_id = await enabled(served)
        for key in ("g", f"g:{uuid_text(topic_id)}", f":{uuid_text(topic_id)}:0", "g:short:0"):
            assert (await found(served, key)).error_code == ErrorCode.INVALID_REQUEST
        assert SHARE_STATE_TOPIC not in served.node.controller.state.topics


@asynchronous
async def test_redundant_records_are_deleted_from_the_log(tmp_path):
    settings = {**SETTINGS, "share_coordinator_snapshot_update_records_per_snapshot": "0"}
    async with serving(tmp_path, **settings) as served:
        topic_id = await enabled(served)
        await found(served, f"g:{uuid_text(topic_id)}:0")
        await served.ask(initialize(topic_id, 0), 0, ADMIN)
        for _ in range(3):
            await served.ask(write(topic_id), 1, ADMIN)
        shares, replicas = served.node.shares, served.node.replicas
        (partition,) = (number for number, shard in shares._runtime.shards() if list(shard.states()))
        shares._runtime._settle(partition, shares._runtime.shard(partition).on_timer(("prune",), 0))
        partition_log = replicas.get((SHARE_STATE_TOPIC, partition)).log
        assert (partition_log.log_start_offset, partition_log.log_end_offset) == (3, 4)

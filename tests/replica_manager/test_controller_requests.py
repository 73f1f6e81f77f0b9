"""LeaderAndIsr and StopReplica: which are refused, which change nothing, and what is deleted."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from tests.replica_manager.cluster import Cluster
from tests.replica_manager.virtual_time import run

T = ("t", 0)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., None]:
    def play(test: Callable[[Cluster], Coroutine[Any, Any, None]], **settings: Any) -> None:
        async def main() -> None:
            async with Cluster(tmp_path, **settings) as cluster:
                await cluster.create()
                await test(cluster)

        run(main())

    return play


async def say(cluster: Cluster, broker: int, request: LeaderAndIsrRequest) -> tuple[int, list[int]]:
    answer = await cluster.nodes[broker].serve(request, 7, LeaderAndIsrResponse)
    return answer.error_code, [each.error_code for topic in answer.topics for each in topic.partition_errors]


def test_older_controllers_and_epochs_are_refused_and_change_nothing(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        assigned = cluster.partitions[T]
        known = cluster.nodes[1].partition().leader_epoch
        assigned.leader_epoch, assigned.leader = 5, 2
        epoch = cluster.nodes[1].epoch
        stale = cluster.leader_and_isr([T], broker_epoch=epoch - 1)
        assert await say(cluster, 1, stale) == (77, [77])
        old = cluster.leader_and_isr([T], controller_epoch=0)
        assert await say(cluster, 1, old) == (11, [11])
        assert cluster.nodes[1].partition().leading
        assert cluster.nodes[1].partition().leader_epoch == known
        for any_epoch in (-1, epoch, epoch + 7):
            assigned.leader_epoch += 1
            assert await say(cluster, 1, cluster.leader_and_isr([T], broker_epoch=any_epoch)) == (0, [0])
        assert not cluster.nodes[1].partition().leading
        newer = cluster.leader_and_isr([], controller_epoch=9)
        assert await say(cluster, 1, newer) == (0, [])
        assert await say(cluster, 1, cluster.leader_and_isr([T])) == (11, [11])

    play(test)


def test_each_partition_has_its_own_answer(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.controller_epoch = 2
        assert await say(cluster, 1, cluster.leader_and_isr([T])) == (0, [11]), "what is known is harmless"
        other_id = cluster.leader_and_isr([T])
        other_id.topic_states[0].topic_id = uuid4().bytes
        other_id.topic_states[0].partition_states[0].leader_epoch = 9
        assert await say(cluster, 1, other_id) == (0, [103])
        foreign = cluster.leader_and_isr([T])
        foreign.topic_states[0].partition_states[0].replicas = [2, 3]
        foreign.topic_states[0].partition_states[0].leader_epoch = 9
        assert await say(cluster, 1, foreign) == (0, [3])
        assert cluster.nodes[1].partition().leader_epoch == 0
        cluster.nodes[1].manager.lose([T])
        lost = cluster.leader_and_isr([T])
        assert await say(cluster, 1, lost) == (0, [56])

    play(test)


def test_a_partition_without_a_leader_leads_no_more(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        request = cluster.leader_and_isr([T])
        state = request.topic_states[0].partition_states[0]
        state.leader, state.leader_epoch, state.partition_epoch = -1, 1, 1
        assert await say(cluster, 1, request) == (0, [0])
        assert (await cluster.produce(b"one", to=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(test)


def test_what_was_moved_to_others_is_left_though_nobody_said_to_stop(play: Callable[..., None]) -> None:
    """The broker's session had expired when the move ended, so the controller notified only the other brokers."""

    def moved(partition: ReplicatedPartition, epoch: int, replicas: list[int]) -> UpdateMetadataRequest:
        state = UpdateMetadataPartitionState(
            partition_index=0, leader=2, leader_epoch=epoch, isr=[2, 3], zk_version=9, replicas=replicas
        )
        return UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState("t", partition.topic_id, [state])])

    async def test(cluster: Cluster) -> None:
        node = cluster.nodes[1]
        partition = node.partition()
        for harmless in (
            moved(partition, partition.leader_epoch, [2, 3]),
            moved(partition, partition.leader_epoch + 1, [2, 3, 1]),
            moved(partition, partition.leader_epoch + 1, []),
        ):
            whole(node.manager.leave(harmless))
            assert node.replicas.get(T) is partition
        whole(node.manager.leave(moved(partition, partition.leader_epoch + 1, [2, 3])))
        assert node.replicas.get(T) is None
        assert not partition.leading
        assert T in node.replicas.logs

    play(test)


def test_a_stopped_replica_is_copied_no_more_and_a_deleted_one_is_gone(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.produce(b"one")
        assert (await cluster.stop_replica(3, controller_epoch=0, delete=True)).error_code == 11
        stale = await cluster.stop_replica(3, broker_epoch=cluster.nodes[3].epoch - 1, delete=True)
        assert stale.error_code == 77
        cluster.elect(T, keep=True)
        await cluster.told()
        found = await cluster.stop_replica(3, 0, delete=True)
        assert [each.error_code for each in found.partition_errors] == [74]
        found = await cluster.stop_replica(3, 1, delete=False)
        assert [each.error_code for each in found.partition_errors] == [0]
        await cluster.produce(b"two", timeout_ms=60_000)
        assert cluster.in_sync() == {1, 2}
        assert cluster.nodes[3].partition().log.log_end_offset == 1
        for _ in range(2):
            found = await cluster.stop_replica(3, -2, delete=True)
            assert [each.error_code for each in found.partition_errors] == [0]
        assert cluster.nodes[3].replicas.get(T) is None
        assert T not in cluster.nodes[3].logs
        assert not (cluster.directory / "3" / "t-0").exists()
        answer = await cluster.produce(b"three", to=3)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster.nodes[3].elsewhere.add("t")
        answer = await cluster.produce(b"three", to=3)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(test)


def test_a_replica_that_is_deleted_and_assigned_again_begins_anew(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        await cluster.produce(b"one")
        await cluster.stop_replica(3, -1, delete=True)
        cluster.partitions[T].isr = (1, 2)
        cluster.elect(T, keep=True)
        await cluster.until(lambda: cluster.in_sync() == {1, 2, 3})
        await cluster.until(cluster.are_equal)

    play(test)


async def fetch_as(cluster: Cluster, replica: int, offset: int = 0, epoch: int = 0) -> Any:
    wanted = FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic_id=cluster.topic_ids["t"], partitions=[wanted])]
    request = FetchRequest(replica_state=ReplicaState(replica, -1), session_epoch=-1, topics=topics)
    answer = await cluster.nodes[1].serve(request, 17, FetchResponse)
    return answer.responses[0].partitions[0]


def test_who_has_no_replica_is_told_to_wait_for_one(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        assert (await fetch_as(cluster, 9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await fetch_as(cluster, 9, epoch=-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch_as(cluster, 2, epoch=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await fetch_as(cluster, 2, offset=7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert cluster.nodes[1].partition().log.high_watermark == 0

    play(test)


def test_a_tool_reads_what_is_not_committed_from_any_replica(play: Callable[..., None]) -> None:
    async def test(cluster: Cluster) -> None:
        cluster.network.cut.update({("broker2", "broker1"), ("broker3", "broker1")})
        cluster.network.change()
        await cluster.produce(b"one", acks=1)
        assert (await fetch_as(cluster, -2)).records
        assert not (await fetch_as(cluster, -1)).records

    play(test)

"""The current leader, returned to clients of the wrong broker: from the replica or the metadata, whichever is newer."""

from __future__ import annotations

from pathlib import Path

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.inter_broker import LeaderAndIsrResponse
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.replica_manager.cluster import Cluster, batch
from tests.replica_manager.virtual_time import run

T = ("t", 0)


async def told_to_producer(cluster: Cluster, broker: int) -> tuple[int, int, list[int]]:
    """Return leader, leader epoch and the nodes whose addresses are returned."""
    data = TopicProduceData("t", partition_data=[PartitionProduceData(0, batch(b"one"))])
    answer = await cluster.nodes[broker].serve(ProduceRequest(None, 1, 1000, [data]), 10, ProduceResponse)
    found = answer.responses[0].partition_responses[0]
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    hint = found.current_leader
    return hint.leader_id, hint.leader_epoch, [each.node_id for each in answer.node_endpoints]


async def told_to_consumer(cluster: Cluster, broker: int, epoch: int) -> tuple[int, int, list[int]]:
    wanted = FetchPartition(partition=0, fetch_offset=0, current_leader_epoch=epoch, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=cluster.topic_ids["t"], partitions=[wanted])
    request = FetchRequest(max_wait_ms=0, session_epoch=-1, topics=[topic])
    answer = await cluster.nodes[broker].serve(request, 16, FetchResponse)
    found = answer.responses[0].partitions[0]
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
    hint = found.current_leader
    return hint.leader_id, hint.leader_epoch, [each.node_id for each in answer.node_endpoints]


def test_the_replica_may_know_sooner_than_the_metadata(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.create()
            assigned = cluster.partitions[T]
            old = assigned.leader_epoch
            assert assigned.leader == 1
            assigned.leader, assigned.leader_epoch, assigned.partition_epoch = 2, old + 1, 7
            await cluster.nodes[1].serve(cluster.leader_and_isr([T]), 7, LeaderAndIsrResponse)
            known = cluster.nodes[1].services.controller.state.topics["t"].partitions[0]
            assert (known.leader, known.leader_epoch) == (1, old)

            assert await told_to_producer(cluster, 1) == (2, old + 1, [2])
            assert await told_to_consumer(cluster, 1, old) == (2, old + 1, [2])

    run(main())


def test_the_metadata_may_know_sooner_than_the_replica(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.create()
            assigned = cluster.partitions[T]
            assigned.leader, assigned.leader_epoch = 3, assigned.leader_epoch + 1
            cluster._publish()
            assert not cluster.nodes[2].partition().leading
            assert await told_to_producer(cluster, 2) == (3, assigned.leader_epoch, [3])

    run(main())


def test_a_leader_that_is_gone_has_no_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.create()
            assigned = cluster.partitions[T]
            assigned.leader, assigned.leader_epoch, assigned.partition_epoch = -1, assigned.leader_epoch + 1, 7
            await cluster.nodes[1].serve(cluster.leader_and_isr([T]), 7, LeaderAndIsrResponse)
            assert await told_to_producer(cluster, 1) == (-1, assigned.leader_epoch, [])

    run(main())

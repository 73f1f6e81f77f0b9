"""What clients and brokers request of the controller, as requests to brokers of an embedded cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.config.operations import Op
from kbroker.embed_cluster import Cluster
from kbroker.handlers.describe_configs import TOPIC
from kbroker.peers.connection import TcpPeers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

A = TypeVar("A")
PATIENCE_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def controller(cluster: Cluster) -> int:
    [active] = [number for number, broker in cluster.brokers.items() if broker.node.controller.is_active]
    return active


def ask(cluster: Cluster, broker: int, request: Any, version: int, answer: type[A]) -> A:
    host, _, port = cluster.brokers[broker].bootstrap_servers.rpartition(":")

    async def asked() -> A:
        peer = TcpPeers().peer(host, int(port), "test")
        try:
            return await peer.ask(request, version, answer, PATIENCE_S * 1000)
        finally:
            peer.close()

    return cluster.run(asked())


def create(cluster: Cluster, name: str, replicas: list[list[int]]) -> None:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    client.create_topics([NewTopic(name, len(replicas), replica_assignment=replicas)])[name].result(PATIENCE_S)


def leader(cluster: Cluster, topic: str) -> int:
    found = cluster.brokers[1].node.member.state.partition(topic, 0)
    return -1 if found is None else found.leader


def reassign(cluster: Cluster, broker: int, topic: str, target: list[int] | None, **more: Any) -> int:
    partitions = [ReassignablePartition(0, target)]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(topic, partitions)], **more)
    answer = ask(cluster, broker, request, 1, AlterPartitionReassignmentsResponse)
    if answer.error_code:
        return answer.error_code
    assert [topic.name for topic in answer.responses] == [topic]
    return answer.responses[0].partitions[0].error_code


def test_a_partition_is_moved_and_listed_meanwhile(cluster: Cluster) -> None:
    create(cluster, "moved", [[1, 2]])
    active = controller(cluster)
    assert reassign(cluster, active, "moved", None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(cluster, active, "moved", [9]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    too_few = reassign(cluster, active, "moved", [3], allow_replication_factor_change=False)
    assert too_few == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(cluster, active, "moved", [3, 2]) == 0

    def is_over() -> bool:
        answers = [
            ask(cluster, active, request, 0, ListPartitionReassignmentsResponse).topics
            for request in (
                ListPartitionReassignmentsRequest(topics=None),
                ListPartitionReassignmentsRequest(topics=[ListPartitionReassignmentsTopics("moved", [0, 7])]),
            )
        ]
        return answers == [[], []]

    until(is_over)
    until(lambda: leader(cluster, "moved") in (2, 3))
    found = cluster.brokers[1].node.member.state.partition("moved", 0)
    assert found is not None
    assert found.replicas == (3, 2)


def test_leaders_are_elected(cluster: Cluster) -> None:
    create(cluster, "elected", [[1, 2]])
    active = controller(cluster)
    partitions = [TopicPartitions("elected", [0, 5]), TopicPartitions("nothing", [0])]
    answer = ask(cluster, active, ElectLeadersRequest(0, partitions, 5_000), 2, ElectLeadersResponse)
    errors = {
        (topic.topic, each.partition_id): each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }
    assert errors == {
        ("elected", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("elected", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    # Another order of the same replicas changes the preferred leader.
    assert reassign(cluster, active, "elected", [2, 1]) == 0
    assert leader(cluster, "elected") == 1
    of_all = ask(cluster, active, ElectLeadersRequest(0, None, 5_000), 1, ElectLeadersResponse)
    [topic] = of_all.replica_election_results  # the other partitions need no election
    assert (topic.topic, [each.error_code for each in topic.partition_result]) == ("elected", [0])
    until(lambda: leader(cluster, "elected") == 2)
    wrong = ask(cluster, active, ElectLeadersRequest(7, partitions, 5_000), 2, ElectLeadersResponse)
    assert wrong.error_code == ErrorCode.INVALID_REQUEST


def test_an_election_is_answered_once_this_broker_knows_of_it_or_when_its_time_is_over(cluster: Cluster) -> None:
    create(cluster, "timed", [[1, 2]])
    active = controller(cluster)
    reassign(cluster, active, "timed", [2, 1])
    request = ElectLeadersRequest(0, [TopicPartitions("timed", [0])], 0)
    answer = ask(cluster, active, request, 2, ElectLeadersResponse)
    assert answer.replica_election_results[0].partition_result[0].error_code in (0, ErrorCode.REQUEST_TIMED_OUT)
    until(lambda: leader(cluster, "timed") == 2)


def test_who_is_not_the_controller_says_so(cluster: Cluster) -> None:
    other = next(each for each in cluster.brokers if each != controller(cluster))
    assert reassign(cluster, other, "any", [1]) == ErrorCode.NOT_CONTROLLER
    listed = ask(cluster, other, ListPartitionReassignmentsRequest(), 0, ListPartitionReassignmentsResponse)
    assert listed.error_code == ErrorCode.NOT_CONTROLLER
    request = ElectLeadersRequest(0, [TopicPartitions("any", [0])], 5_000)
    [topic] = ask(cluster, other, request, 2, ElectLeadersResponse).replica_election_results
    assert topic.partition_result[0].error_code == ErrorCode.NOT_CONTROLLER
    altered = ask(cluster, other, AlterPartitionRequest(1, 1), 3, AlterPartitionResponse)
    assert altered.error_code == ErrorCode.NOT_CONTROLLER
    shut_down = ask(cluster, other, ControlledShutdownRequest(1, 1), 3, ControlledShutdownResponse)
    assert shut_down.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    block = ask(cluster, other, AllocateProducerIdsRequest(1, 1), 0, AllocateProducerIdsResponse)
    assert block.error_code == ErrorCode.NOT_CONTROLLER


def test_requests_of_earlier_registrations_are_refused(cluster: Cluster) -> None:
    active = controller(cluster)
    epoch = cluster.brokers[2].node.registration.epoch
    altered = ask(cluster, active, AlterPartitionRequest(2, epoch - 1), 3, AlterPartitionResponse)
    assert altered.error_code == ErrorCode.STALE_BROKER_EPOCH
    shut_down = ask(cluster, active, ControlledShutdownRequest(2, epoch - 1), 3, ControlledShutdownResponse)
    assert shut_down.error_code == ErrorCode.STALE_BROKER_EPOCH
    block = ask(cluster, active, AllocateProducerIdsRequest(2, epoch + 1), 0, AllocateProducerIdsResponse)
    assert block.error_code == ErrorCode.STALE_BROKER_EPOCH
    given = ask(cluster, active, AllocateProducerIdsRequest(2, epoch), 0, AllocateProducerIdsResponse)
    assert (given.error_code, given.producer_id_len) == (0, 1000)


def test_changes_of_one_topic_through_two_brokers_at_a_time_all_hold(cluster: Cluster) -> None:
    """Both append to one list and remove from it, and each sets its own key."""
    create(cluster, "changed", [[1, 2, 3]])
    until(lambda: all("changed" in broker.node.member.state.topics for broker in cluster.brokers.values()))
    shared = "leader.replication.throttled.replicas"
    own = {1: "retention.ms", 2: "segment.ms"}
    rounds = range(20)

    async def change(broker: int) -> None:
        host, _, port = cluster.brokers[broker].bootstrap_servers.rpartition(":")
        peer = TcpPeers().peer(host, int(port), "test")
        try:
            for turn in rounds:
                item = f"{broker}:{turn}"
                for ops in (
                    [IncrementalConfig(shared, Op.APPEND, item)],
                    [IncrementalConfig(own[broker], Op.SET, str(100_000 + turn))],
                    [IncrementalConfig(shared, Op.SUBTRACT, item)] if turn % 2 else [],
                ):
                    request = IncrementalAlterConfigsRequest([IncrementalResource(TOPIC, "changed", ops)])
                    answer = await peer.ask(request, 1, IncrementalAlterConfigsResponse, PATIENCE_S * 1000)
                    assert [each.error_code for each in answer.responses] == [0], answer.responses[0].error_message
        finally:
            peer.close()

    async def both() -> None:
        await asyncio.gather(*(change(broker) for broker in own))

    cluster.run(both())
    left = {f"{broker}:{turn}" for broker in own for turn in rounds if not turn % 2}

    def is_known(number: int) -> bool:
        configs = cluster.brokers[number].node.member.state.topics["changed"].configs
        mine = {configs.get(key) for key in own.values()}
        return set(configs.get(shared, "").split(",")) == left and mine == {str(100_000 + rounds[-1])}

    until(lambda: all(map(is_known, cluster.brokers)))

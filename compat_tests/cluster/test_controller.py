"""kbroker as the controller of Apache Kafka 3.9.1 brokers, and such a broker as the controller of kbroker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.cluster.tools import create, numbered, producer, read_all, send
from compat_tests.harness.clusters import MixedCluster
from compat_tests.harness.zookeeper import ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker import handlers
from kbroker.controller.features import NEW_CLUSTER
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

pytestmark = [pytest.mark.java, pytest.mark.long]
KBROKER = 3
_SAFE_DOWNGRADE = 2
handlers.load_all(in_cluster=True)  # which answers there are to what only a cluster is asked


class LedByKBroker(MixedCluster):
    """kbroker starts first and so is elected; the features that it finalizes are lowered before Java brokers join."""

    def start_all(self) -> None:
        self._kbroker.start_all()
        lowered = [FeatureUpdateKey(name, 0, upgrade_type=_SAFE_DOWNGRADE) for name in NEW_CLUSTER]
        with WireClient(self._kbroker.bootstrap) as client:
            answer = client.ask(UpdateFeaturesRequest(feature_updates=lowered), 1)
        assert answer.error_code == 0, answer.error_message
        self._java.start_all()
        self.bootstrap = f"{self._java.bootstrap},{self._kbroker.bootstrap}"


@pytest.fixture(scope="module")
def zookeeper(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(kafka39_libs, tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def mixed(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[LedByKBroker]:
    with LedByKBroker(kafka39_libs, tmp_path_factory.mktemp("mixed"), zookeeper) as cluster:
        cluster.wait_until_in_sync()
        yield cluster


@pytest.fixture
def cluster(mixed: LedByKBroker) -> Iterator[LedByKBroker]:
    """Yield three brokers in sync, of which kbroker is the controller."""
    if mixed.controller() != KBROKER:
        others = [each for each in mixed.node_ids if each != KBROKER]
        for node_id in others:
            mixed.stop(node_id)
        mixed.wait_for_controller(other_than=others[0])
        for node_id in others:
            mixed.start(node_id)
        mixed.wait_until_in_sync()
    assert mixed.controller() == KBROKER
    yield mixed
    mixed.mend()


def ask(cluster: LedByKBroker, request: Any, version: int) -> Any:
    with WireClient(cluster.address(cluster.controller())) as client:
        return client.ask(request, version)


def state(zookeeper: ZooKeeper, topic: str) -> dict[str, Any]:
    with zookeeper.tree() as tree:
        found: dict[str, Any] = json.loads(tree.get(f"/brokers/topics/{topic}/partitions/0/state")[0])
        return found


def test_a_java_leader_dies_and_comes_back_in_sync(cluster: LedByKBroker, name: str) -> None:
    topic = create(cluster, name, 6)
    client = producer(cluster, enable_idempotence=True)
    before, after = numbered("before", 200), numbered("after", 200)
    [partition] = [index for index in range(6) if cluster.leader_of(topic, index) == 1][:1]
    assert send(client, topic, before, partition).acknowledged == before
    cluster.kill(1)
    assert send(client, topic, after, partition).acknowledged == after
    leader = cluster.wait_for_leader(topic, partition, other_than=1)
    assert leader in (2, 3)
    assert 1 not in cluster.isr_of(topic, partition)
    cluster.start(1)
    for index in range(6):
        cluster.wait_for_isr(topic, index, {1, 2, 3})
    assert sorted(read_all(cluster, topic, partition)) == sorted(before + after)
    # Elect the preferred leaders again:
    partitions = [TopicPartitions(topic, list(range(6)))]
    [result] = ask(cluster, ElectLeadersRequest(0, partitions, 30_000), 2).replica_election_results
    assert {each.error_code for each in result.partition_result} <= {0, 84}
    cluster.wait_for("the preferred leader", lambda: cluster.leader_of(topic, partition) == 1)


def test_a_java_broker_stops_in_order(cluster: LedByKBroker, zookeeper: ZooKeeper, name: str) -> None:
    topic = create(cluster, name)
    leader = cluster.leader_of(topic, 0)
    if leader == KBROKER:
        reassign(cluster, topic, [1, 2, 3])
        cluster.wait_for_leader(topic, 0)
    before = state(zookeeper, topic)
    cluster.stop(1)
    after = state(zookeeper, topic)
    assert after["leader"] != 1
    assert 1 not in after["isr"]
    assert after["controller_epoch"] == before["controller_epoch"]
    cluster.start(1)
    cluster.wait_for_isr(topic, 0, {1, 2, 3})


def reassign(cluster: LedByKBroker, topic: str, target: list[int] | None) -> None:
    partitions = [ReassignablePartition(0, target)]
    request = AlterPartitionReassignmentsRequest(30_000, topics=[ReassignableTopic(topic, partitions)])
    answer = ask(cluster, request, 0)
    assert answer.error_code == 0
    assert [each.error_code for each in answer.responses[0].partitions] == [0]


def test_a_partition_moves_between_java_and_kbroker(cluster: LedByKBroker, zookeeper: ZooKeeper, name: str) -> None:
    topic = create(cluster, name)
    values = numbered("record", 300)
    assert send(producer(cluster), topic, values).acknowledged == values
    for target in ([1], [3], [2], [1, 2, 3], [3, 1], [2, 1]):
        reassign(cluster, topic, target)

        def has_moved() -> bool:
            listed = ask(cluster, ListPartitionReassignmentsRequest(30_000), 0).topics
            return not listed and set(state(zookeeper, topic)["isr"]) == set(target)  # noqa: B023 - called in this turn

        cluster.wait_for(f"{topic} on {target}", has_moved)
        cluster.wait_for("a leader", lambda: cluster.leader_of(topic, 0) in target)  # noqa: B023
        assert sorted(read_all(cluster, topic)) == sorted(values)
    with zookeeper.tree() as tree:
        stored = json.loads(tree.get(f"/brokers/topics/{topic}")[0])
    assert stored["partitions"] == {"0": [2, 1]}
    assert not stored["adding_replicas"]
    assert not stored["removing_replicas"]


def test_a_topic_is_deleted_everywhere(cluster: LedByKBroker, zookeeper: ZooKeeper, name: str) -> None:
    topic = create(cluster, name, 3)
    answer = ask(cluster, DeleteTopicsRequest([DeleteTopicState(topic)], timeout_ms=30_000), 6)
    assert [each.error_code for each in answer.responses] == [0]
    with zookeeper.tree() as tree:
        cluster.wait_for("the end of its znodes", lambda: not tree.exists(f"/admin/delete_topics/{topic}"))
        assert not tree.exists(f"/brokers/topics/{topic}")
        assert not tree.exists(f"/config/topics/{topic}")
    for node_id in cluster.node_ids:
        cluster.wait_for("nobody to know it", lambda: cluster.partition(topic, 0, of=node_id) is None)  # noqa: B023


def test_the_controller_dies_and_java_goes_on_and_hands_back(cluster: LedByKBroker, name: str) -> None:
    topic = create(cluster, name, 3)
    client = producer(cluster)
    before, after = numbered("before", 100), numbered("after", 100)
    assert send(client, topic, before).acknowledged == before
    cluster.kill(KBROKER)
    assert cluster.wait_for_controller(other_than=KBROKER) in (1, 2)
    assert send(client, topic, after).acknowledged == after
    cluster.start(KBROKER)
    for index in range(3):
        cluster.wait_for_isr(topic, index, {1, 2, 3})
    assert read_all(cluster, topic) == before + after


def test_a_controller_that_was_frozen_is_one_no_longer(cluster: LedByKBroker, zookeeper: ZooKeeper, name: str) -> None:
    topic = create(cluster, name, 3)
    client = producer(cluster)
    before, after = numbered("before", 100), numbered("after", 100)
    assert send(client, topic, before).acknowledged == before
    epoch = state(zookeeper, topic)["controller_epoch"]
    cluster.pause(KBROKER)
    assert cluster.wait_for_controller(other_than=KBROKER) in (1, 2)
    assert send(client, topic, after).acknowledged == after
    cluster.resume(KBROKER)
    assert cluster.wait_for_controller(other_than=KBROKER) in (1, 2)  # also to who was frozen
    for index in range(3):
        cluster.wait_for_isr(topic, index, {1, 2, 3})
    with zookeeper.tree() as tree:
        assert int(tree.get("/controller_epoch")[0]) == epoch + 1
    assert read_all(cluster, topic) == before + after

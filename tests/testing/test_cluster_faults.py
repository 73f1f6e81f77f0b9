"""Faults of a cluster apply at every broker, but not to requests between brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster, ErrorCode
from tests.testing.test_snapshot import PATIENCE_S

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as made:
        yield made


@pytest.fixture
def producer(cluster: Cluster) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, "retry.backoff.ms": 20})


def topic_of(cluster: Cluster, name: str, partitions: int = 6) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(PATIENCE_S)
    return name


def send(producer: Producer, topic: str, partitions: int = 6) -> list[object]:
    told: list[object] = []
    for index in range(partitions):
        producer.produce(topic, "v", partition=index, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return told


def refused_partitions(cluster: Cluster, topic: str) -> set[int]:
    """Return the partitions whose Produce was refused.

    The client's errors do not show them: after TOPIC_AUTHORIZATION_FAILED it fails the records of the whole topic.
    """
    return {
        partition.index
        for request in cluster.requests.of("Produce", topic=topic)
        for answer in request.answer.responses
        for partition in answer.partition_responses
        if partition.error_code
    }


def led_by(cluster: Cluster, broker: int, topic: str) -> set[int]:
    partitions = cluster.brokers[1].node.metadata.state.topics[topic].partitions
    found = {index for index, each in enumerate(partitions) if each.leader == broker}
    assert 0 < len(found) < len(partitions)
    return found


def test_all_brokers_meet_them_and_all_count(cluster: Cluster, producer: Producer) -> None:
    topic = topic_of(cluster, "all")
    with cluster.faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=4, topic=topic) as fault:
        assert send(producer, topic) == [None] * 6
    assert fault.hits == 4
    seen = cluster.requests
    seen.clear()
    assert send(producer, topic) == [None] * 6
    assert {each.api for each in seen} >= {"Produce"}
    assert "LeaderAndIsr" not in {each.api for each in seen}


def test_one_broker_alone(cluster: Cluster, producer: Producer) -> None:
    topic = topic_of(cluster, "one")
    send(producer, topic)
    with cluster.faults.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, broker=2) as fault:
        cluster.requests.clear()
        send(producer, topic)
    assert fault.hits
    assert refused_partitions(cluster, topic) == led_by(cluster, 2, topic)


def test_a_broker_that_there_is_not(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="there is no broker 4; there are 1, 2, 3"):
        cluster.faults.drop("Produce", broker=4)


def test_followers_are_left_alone(cluster: Cluster, producer: Producer) -> None:
    topic = topic_of(cluster, "copied")
    with cluster.faults.fail("Fetch", ErrorCode.KAFKA_STORAGE_ERROR) as fault:
        assert send(producer, topic) == [None] * 6, "acks=all needs the followers' fetches"
    assert fault.hits == 0


def test_a_broker_that_starts_later_meets_them(cluster: Cluster, producer: Producer) -> None:
    cluster.brokers[3].kill()
    with cluster.faults.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, broker=3) as fault:
        cluster.brokers[3].start()
        topic = topic_of(cluster, "later")
        cluster.requests.clear()
        send(producer, topic)
        assert refused_partitions(cluster, topic) == led_by(cluster, 3, topic)
        assert fault.hits


def test_a_session_that_ends_elects_others(cluster: Cluster, producer: Producer) -> None:
    topic = topic_of(cluster, "lost")
    first = cluster.brokers[1]
    first.cut_from_zookeeper()
    first.expire_session()
    known = cluster.brokers[2].node.metadata
    deadline = time.monotonic() + PATIENCE_S
    while topic not in known.state.topics or any(each.leader == 1 for each in known.state.topics[topic].partitions):
        assert time.monotonic() < deadline, "who is not heard of leads no more"
        time.sleep(0.01)
    first.heal()  # until it reads the new state, it counts itself as the leader, as in Kafka
    assert send(producer, topic) == [None] * 6

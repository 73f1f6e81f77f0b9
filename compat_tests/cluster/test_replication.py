"""Replicated partitions while their brokers stop and return."""

from __future__ import annotations

from collections import Counter

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import NotEnoughReplicasError

from compat_tests.cluster.tools import create, numbered, producer, read_all, send, streaming
from compat_tests.harness.clusters import DEADLINE_S, Cluster

pytestmark = [pytest.mark.java, pytest.mark.long]


def test_created_topics_have_leaders_and_replicas(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name, 6)
    for node_id in cluster.node_ids:
        found = [cluster.partition(topic, index, of=node_id) for index in range(6)]
        assert [set(each.replica_nodes) for each in found] == [{1, 2, 3}] * 6
        assert [set(each.isr_nodes) for each in found] == [{1, 2, 3}] * 6
        assert [each.leader_id for each in found] == [each.replica_nodes[0] for each in found]
        assert Counter(each.leader_id for each in found) == {1: 2, 2: 2, 3: 2}
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        (described,) = client.describe_topics([topic])
        assert [sorted(each["isr_nodes"]) for each in described["partitions"]] == [[1, 2, 3]] * 6
        assert sorted(each["broker_id"] for each in client.describe_cluster()["brokers"]) == [1, 2, 3]
    finally:
        client.close()


def test_a_killed_leader_takes_nothing_acknowledged_along(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    client = producer(cluster, enable_idempotence=True)
    before, after = numbered("before", 200), numbered("after", 200)
    assert send(client, topic, before).acknowledged == before
    leader = cluster.wait_for_leader(topic, 0)
    cluster.kill(leader)
    assert send(client, topic, after).acknowledged == after
    assert cluster.leader_of(topic, 0) != leader
    assert leader not in cluster.isr_of(topic, 0)
    assert read_all(cluster, topic) == before + after
    cluster.start(leader)
    cluster.wait_for_isr(topic, 0, {1, 2, 3})
    assert read_all(cluster, topic) == before + after


def test_kafka_python_goes_on_when_the_leader_is_killed(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    client = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        acks="all",
        enable_idempotence=True,
        delivery_timeout_ms=int(DEADLINE_S * 1000),
        request_timeout_ms=10_000,
    )
    try:
        values = numbered("record", 100)
        for value in values[:50]:
            client.send(topic, value, partition=0).get(DEADLINE_S)
        leader = cluster.wait_for_leader(topic, 0)
        cluster.kill(leader)
        pending = [client.send(topic, value, partition=0) for value in values[50:]]
        assert sorted(each.get(DEADLINE_S).offset for each in pending) == list(range(50, 100))
    finally:
        client.close()
    assert read_all(cluster, topic) == values


def test_a_rolling_restart_loses_and_repeats_nothing(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name, 3)
    with streaming(producer(cluster, enable_idempotence=True, linger_ms=2), topic, 3) as stream:
        for node_id in cluster.node_ids:
            stream.wait_for_more(cluster, 300)
            cluster.stop(node_id)
            stream.wait_for_more(cluster, 300)
            cluster.start(node_id)
            cluster.wait_until_in_sync()
        stream.wait_for_more(cluster, 300)
    for partition, sent in enumerate(stream.sent):
        assert sent.failed == []
        assert read_all(cluster, topic, partition) == sent.acknowledged
    print(f"3 brokers restarted in turn under {stream.acknowledged} records, each there once and in order")


def test_leaders_killed_in_turn_lose_and_repeat_nothing(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name, 3)
    with streaming(producer(cluster, enable_idempotence=True, linger_ms=2), topic, 3) as stream:
        for partition in range(3):
            stream.wait_for_more(cluster, 300)
            leader = cluster.wait_for_leader(topic, partition)
            cluster.kill(leader)
            cluster.wait_for_leader(topic, partition, other_than=leader)
            stream.wait_for_more(cluster, 300)
            cluster.start(leader)
            cluster.wait_until_in_sync()
    for partition, sent in enumerate(stream.sent):
        assert sent.failed == []
        assert read_all(cluster, topic, partition) == sent.acknowledged


def test_too_few_replicas_acknowledge_nothing(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    first = numbered("first", 10)
    assert send(producer(cluster), topic, first).acknowledged == first
    leader = cluster.wait_for_leader(topic, 0)
    for node_id in cluster.others(leader):
        cluster.kill(node_id)
    cluster.wait_for_isr(topic, 0, {leader})
    hasty = producer(cluster, retries=0, enable_idempotence=False)
    refused = send(hasty, topic, [b"refused"])
    assert refused.failed == [(b"refused", "NOT_ENOUGH_REPLICAS")]
    # The client draws one of three addresses at random, and waits longer after each dead one: two of them are dead.
    alive = cluster.address(leader)
    python = KafkaProducer(bootstrap_servers=alive, acks="all", retries=0, enable_idempotence=False)
    try:
        with pytest.raises(NotEnoughReplicasError):
            python.send(topic, b"refused", partition=0).get(DEADLINE_S)
    finally:
        python.close()
    # With one acknowledgement, the leader alone may answer.
    assert send(producer(cluster, acks=1), topic, [b"alone"]).acknowledged == [b"alone"]
    assert read_all(cluster, topic) == first  # consumers do not see what only the leader has
    cluster.start(cluster.others(leader)[0])
    assert send(producer(cluster), topic, [b"again"]).acknowledged == [b"again"]
    assert read_all(cluster, topic) == [*first, b"alone", b"again"]


def test_a_frozen_leader_is_replaced_and_comes_back(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    client = producer(cluster, enable_idempotence=True)
    before, after = numbered("before", 50), numbered("after", 50)
    assert send(client, topic, before).acknowledged == before
    leader = cluster.wait_for_leader(topic, 0)
    cluster.pause(leader)
    other = cluster.wait_for_leader(topic, 0, other_than=leader)
    assert send(client, topic, after).acknowledged == after
    cluster.resume(leader)

    def is_back() -> bool:
        # This is asked of the new leader: the broker that was frozen answers for a moment with what it knew before.
        found = cluster.partition(topic, 0, of=other)
        return found is not None and found.leader_id == other and set(found.isr_nodes) == {1, 2, 3}

    cluster.wait_for(f"{leader} in sync behind {other}", is_back)
    assert read_all(cluster, topic) == before + after


def test_a_killed_controller_is_replaced(cluster: Cluster, name: str) -> None:
    first = create(cluster, f"{name}-first", 3)
    controller = cluster.wait_for_controller()
    cluster.kill(controller)
    other = cluster.wait_for_controller(other_than=controller)
    cluster.wait_for(
        f"leaders of {first}", lambda: all(cluster.leader_of(first, index) in cluster.serving for index in range(3))
    )
    cluster.start(controller)
    cluster.wait_until_in_sync()
    assert cluster.wait_for_controller() == other
    second = create(cluster, f"{name}-second", 3)
    values = numbered("record", 20)
    for index in range(3):
        assert send(producer(cluster), second, values, index).acknowledged == values


def test_all_brokers_killed_at_once_lose_nothing(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    values = numbered("record", 200)
    assert send(producer(cluster), topic, values).acknowledged == values
    for node_id in cluster.node_ids:
        cluster.kill(node_id)
    cluster.mend()
    assert read_all(cluster, topic) == values

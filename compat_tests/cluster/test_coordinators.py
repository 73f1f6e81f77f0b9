"""Consumer groups and transactions while their coordinators are killed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer

from compat_tests.cluster.tools import consumer, create, numbered, producer, read_all, send, take, try_for
from compat_tests.harness.clusters import DEADLINE_S, SETTINGS, Cluster
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordination.partitioning import partition_for

pytestmark = [pytest.mark.java, pytest.mark.long]


def coordinator_of(cluster: Cluster, topic: str, key: str) -> int:
    """Wait for the broker that coordinates a group or a transactional id, and return it."""
    count = {OFFSETS_TOPIC: "offsets.topic.num.partitions", TRANSACTIONS_TOPIC: "transaction.state.log.num.partitions"}
    return cluster.wait_for_leader(topic, partition_for(key, int(SETTINGS[count[topic]])))


def committed(cluster: Cluster, group: str, topic: str) -> int:
    """Return the offset that a group has committed."""

    def ask() -> int:
        with consumer(cluster, group) as client:
            (found,) = client.committed([TopicPartition(topic, 0)], 10)
            if found.error is not None:
                raise KafkaException(found.error)
            return int(found.offset)

    return int(try_for(cluster, f"the offsets of {group}", ask, KafkaException))


def transactional(cluster: Cluster, name: str) -> Producer:
    client = producer(cluster, transactional_id=name, transaction_timeout_ms=int(DEADLINE_S * 1000))
    client.init_transactions(DEADLINE_S)
    return client


def wait_for_committed(cluster: Cluster, topic: str, expected: list[bytes], partition: int = 0) -> None:
    """Wait until read_committed consumers see these values: markers are written after the commit was answered."""

    def seen() -> bool:
        found = read_all(cluster, topic, partition, isolation_level="read_committed")
        assert found == expected[: len(found)]
        return found == expected

    cluster.wait_for(f"{len(expected)} committed records of {topic}-{partition}", seen)


def write(client: Producer, topic: str, values: list[bytes]) -> None:
    client.begin_transaction()
    assert send(client, topic, values).acknowledged == values


@pytest.mark.parametrize("fate", ["killed", "stopped", "frozen"])
def test_a_group_outlives_its_coordinator(cluster: Cluster, name: str, fate: str) -> None:
    topic = create(cluster, f"{name}-{fate}")
    group = topic
    values = numbered("record", 60)
    sender = producer(cluster, enable_idempotence=True)
    send(sender, topic, values[:20])
    with consumer(cluster, group) as client:
        client.subscribe([topic])
        assert take(client, 20) == values[:20]
        client.commit(asynchronous=False)
        coordinator = coordinator_of(cluster, OFFSETS_TOPIC, group)
        {"killed": cluster.kill, "stopped": cluster.stop, "frozen": cluster.pause}[fate](coordinator)
        assert send(sender, topic, values[20:40]).acknowledged == values[20:40]
        assert take(client, 20) == values[20:40]
        try_for(cluster, "a commit", lambda: client.commit(asynchronous=False), KafkaException)
        assert coordinator_of(cluster, OFFSETS_TOPIC, group) != coordinator
    assert committed(cluster, group, topic) == 40
    cluster.mend()
    assert committed(cluster, group, topic) == 40
    send(sender, topic, values[40:])
    with consumer(cluster, group) as client:
        client.subscribe([topic])
        assert take(client, 20) == values[40:]


def test_a_kafka_python_group_outlives_its_coordinator(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    values = numbered("record", 40)
    sender = producer(cluster, enable_idempotence=True)
    send(sender, topic, values[:20])
    client = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        request_timeout_ms=10_000,
        session_timeout_ms=9_000,
    )
    seen: list[bytes] = []

    def come(count: int) -> bool:
        seen.extend(each.value for polled in client.poll(500).values() for each in polled)
        return len(seen) >= count

    try:
        cluster.wait_for("20 records", lambda: come(20))
        client.commit()
        cluster.kill(coordinator_of(cluster, OFFSETS_TOPIC, name))
        send(sender, topic, values[20:])
        cluster.wait_for("40 records", lambda: come(40))
        assert seen == values
        try_for(cluster, "a commit", client.commit, Exception)
    finally:
        client.close()
    assert committed(cluster, name, topic) == 40


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_transaction_outlives_its_coordinator(cluster: Cluster, name: str, commit: bool) -> None:
    topic = create(cluster, f"{name}-{commit}".lower())
    client = transactional(cluster, topic)
    values = numbered("first", 20), numbered("second", 20)
    write(client, topic, values[0])
    client.commit_transaction(DEADLINE_S)
    write(client, topic, values[1])
    coordinator = coordinator_of(cluster, TRANSACTIONS_TOPIC, topic)
    cluster.kill(coordinator)
    end(client, commit=commit)
    assert coordinator_of(cluster, TRANSACTIONS_TOPIC, topic) != coordinator
    expected = values[0] + values[1] if commit else values[0]
    wait_for_committed(cluster, topic, expected)
    third = numbered("third", 5)
    write(client, topic, third)
    end(client, commit=True)
    wait_for_committed(cluster, topic, expected + third)
    assert read_all(cluster, topic, isolation_level="read_uncommitted") == values[0] + values[1] + third


def test_markers_find_the_new_leader(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name, 3)
    client = transactional(cluster, name)
    values = numbered("record", 20)
    client.begin_transaction()
    for partition in range(3):
        assert send(client, topic, values, partition).acknowledged == values
    coordinator = coordinator_of(cluster, TRANSACTIONS_TOPIC, name)
    leaders = {cluster.leader_of(topic, partition) for partition in range(3)}
    cluster.kill(min(leaders - {coordinator}))
    end(client, commit=True)
    for partition in range(3):
        wait_for_committed(cluster, topic, values, partition)
    cluster.mend()
    for partition in range(3):
        wait_for_committed(cluster, topic, values, partition)


def test_offsets_in_a_transaction_outlive_both_coordinators(cluster: Cluster, name: str) -> None:
    source, target = create(cluster, f"{name}-in"), create(cluster, f"{name}-out")
    values = numbered("record", 10)
    send(producer(cluster), source, values)
    client = transactional(cluster, name)
    with consumer(cluster, f"{name}-g", isolation_level="read_committed") as reader:
        reader.subscribe([source])
        assert take(reader, 10) == values
        write(client, target, values)
        positions = reader.position(reader.assignment())
        client.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), DEADLINE_S)
        cluster.kill(coordinator_of(cluster, OFFSETS_TOPIC, f"{name}-g"))
        end(client, commit=True)
    assert committed(cluster, f"{name}-g", source) == 10
    cluster.mend()
    cluster.kill(coordinator_of(cluster, TRANSACTIONS_TOPIC, name))
    assert committed(cluster, f"{name}-g", source) == 10
    wait_for_committed(cluster, target, values)


def test_producers_of_all_brokers_have_different_ids(cluster: Cluster, name: str) -> None:
    from compat_tests.wire.client import WireClient
    from kbroker.protocol.messages.transactions import InitProducerIdRequest

    def some() -> list[int]:
        found = []
        for node_id in cluster.serving:
            with WireClient(cluster.address(node_id)) as client:
                for _ in range(5):
                    answer = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
                    if answer.error_code == 0:
                        found.append(answer.producer_id)
        return found

    cluster.wait_for("ids of every broker", lambda: len(some()) == 15)
    before = some()
    cluster.kill(cluster.wait_for_controller())
    cluster.mend()
    cluster.wait_for("ids of every broker", lambda: len(some()) == 15)
    after = some()
    assert len(set(before + after)) == len(before + after)


def end(client: Producer, *, commit: bool) -> None:
    """End a transaction, with as many attempts as necessary."""
    call: Any = client.commit_transaction if commit else client.abort_transaction
    while True:
        try:
            call(DEADLINE_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return

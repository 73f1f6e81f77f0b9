"""Metrics of a cluster's brokers: each broker shows its part, and the controller the total."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster
from kbroker.long_work import whole
from kbroker.metrics.collection import Idle, collect
from kbroker.metrics.health import readiness
from kbroker.metrics.values import Values

PATIENCE_S = 30
FAST = {"replica.fetch.backoff.ms": 100, "controlled.shutdown.retry.backoff.ms": 100, "replica.lag.time.max.ms": 10_000}
TOPICS, REPLICAS = "kafka_server_brokertopicmetrics", "kafka_server_replicamanager"
CONTROLLER = "kafka_controller_kafkacontroller"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as ends:
        yield ends.enter_context(Cluster(brokers=3, config=FAST))


def told(cluster: Cluster) -> dict[int, Values]:
    """Return the metrics of each running broker."""

    async def all_of() -> dict[int, Values]:
        running = {node_id: each.node for node_id, each in cluster.brokers.items() if each.is_running}
        return {node_id: whole(collect(node, Idle(), 0.0)) for node_id, node in running.items()}

    return cluster.run(all_of())


def value(values: Values, name: str, **labels: str) -> float | None:
    return next((found for known, found in values.get(name, []) if known == labels), None)


def until(cluster: Cluster, holds: Callable[[dict[int, Values]], bool]) -> dict[int, Values]:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := told(cluster)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def sum_of(found: dict[int, Values], name: str, **labels: str) -> float:
    return sum(value(values, name, **labels) or 0 for values in found.values())


def under_min_isr(found: dict[int, Values]) -> float:
    return sum(
        sum_of(found, "kafka_cluster_partition_underminisr", topic="orders", partition=str(index)) for index in range(3)
    )


@pytest.mark.long
def test_a_cluster_and_a_broker_that_dies(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    made = NewTopic("orders", 3, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([made])["orders"].result(PATIENCE_S)
    answers: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "enable.idempotence": True})
    for number in range(300):
        producer.produce("orders", b"%d" % number, on_delivery=lambda error, _message: answers.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert answers == [None] * 300

    found = told(cluster)
    assert sum_of(found, f"{CONTROLLER}_activecontrollercount") == 1
    partitions = sum_of(found, f"{CONTROLLER}_globalpartitioncount")  # the coordinators' too
    assert partitions > 3
    assert sum_of(found, f"{CONTROLLER}_activebrokercount") == 3
    assert sum_of(found, f"{TOPICS}_messagesin_total", topic="orders") == 300
    written = sum_of(found, f"{TOPICS}_bytesin_total", topic="orders")
    assert sum_of(found, f"{TOPICS}_replicationbytesin_total") == 2 * written
    assert sum_of(found, f"{TOPICS}_replicationbytesout_total") >= 2 * written
    assert sum_of(found, f"{TOPICS}_bytesout_total") == 0
    assert sum_of(found, f"{REPLICAS}_leadercount") == partitions
    assert sum_of(found, f"{REPLICAS}_partitioncount") == 3 * partitions
    assert sum_of(found, f"{REPLICAS}_underreplicatedpartitions") == 0
    followers = [
        count
        for values in found.values()
        for labels, count in values["kafka_network_requestmetrics_requests_total"]
        if labels["request"] == "FetchFollower"
    ]
    assert sum(followers) > 0

    name = f"{CONTROLLER}_activecontrollercount"
    victim = next(node_id for node_id, values in found.items() if not value(values, name))
    cluster.brokers[victim].kill()
    until(
        cluster,
        lambda now: (
            under_min_isr(now) == 3
            and sum_of(now, f"{REPLICAS}_leadercount") == partitions
            and sum_of(now, f"{REPLICAS}_underreplicatedpartitions") == partitions
            and sum_of(now, f"{CONTROLLER}_activebrokercount") == 2
            and sum_of(now, f"{CONTROLLER}_preferredreplicaimbalancecount") > 0
        ),
    )
    until(cluster, lambda _: readinesses(cluster) == {True})
    assert readinesses(cluster, strict=True) == {False}

    cluster.brokers[victim].start()
    found = until(cluster, lambda now: len(now) == 3 and sum_of(now, f"{REPLICAS}_underreplicatedpartitions") == 0)
    assert sum_of(found, f"{REPLICAS}_isrexpands_total") > 0
    assert sum_of(found, "kafka_controller_controllerstats_uncleanleaderelections_total") == 0
    until(cluster, lambda _: readinesses(cluster, strict=True) == {True})


def readinesses(cluster: Cluster, *, strict: bool = False) -> set[bool]:
    async def all_of() -> set[bool]:
        running = [each.node for each in cluster.brokers.values() if each.is_running]
        return {whole(readiness(node, None, stopping=False, strict=strict))[0] for node in running}

    return cluster.run(all_of())

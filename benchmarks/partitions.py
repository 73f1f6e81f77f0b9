"""2,000 partitions on three brokers: how long their creation takes, and until another controller leads them.

Part of benchmarks/cluster.py, for both sides:

    creation     from CreateTopics (20 topics of 100 partitions, three replicas each) until every broker reports for
                 all partitions that they have a leader and that all replicas are in sync
    first        until each partition has then acknowledged a record with acks=all; all records are sent together
    fail-over    from kill -9 of the controller until both others agree on another one, no longer report the dead
                 broker, and report for every partition that one of them leads it
                 (zookeeper.session.timeout.ms = 6000)
    memory       resident, of all three, before the fail-over
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.clusters import Cluster

TOPICS, PARTITIONS = 20, 100
PATIENCE_S = 300
_LOOK_S = 0.05


def many_partitions(cluster: Cluster) -> dict[str, float]:
    """Return the measured figures; the topics stay."""
    names = [f"many-{number:02}" for number in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    began = time.perf_counter()
    futures = admin.create_topics(
        [NewTopic(name, PARTITIONS, 3) for name in names], operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S
    )
    for future in futures.values():
        future.result(PATIENCE_S)
    _wait_for_all(cluster, names, cluster.node_ids, in_sync=True)
    figures = {"2,000 partitions: creation s": time.perf_counter() - began}
    figures["2,000 partitions: first records s"] = _write_one_each(cluster, names)
    sizes = [psutil.Process(cluster.pid(each)).memory_info().rss for each in cluster.node_ids]
    figures["2,000 partitions: memory MB"] = sum(sizes) / 1e6
    controller = cluster.wait_for_controller()
    survivors = cluster.others(controller)
    began = time.perf_counter()
    cluster.kill(controller)
    _wait_for_all(cluster, names, survivors, in_sync=False)
    figures["2,000 partitions: controller fail-over s"] = time.perf_counter() - began
    cluster.mend()
    return figures


def _wait_for_all(cluster: Cluster, names: Collection[str], live: Collection[int], *, in_sync: bool) -> None:
    """Wait until each of these brokers reports only these brokers, and that they lead all partitions.

    The expensive request is sent only once the rest is true: the broker has other work meanwhile.
    """
    deadline = time.monotonic() + PATIENCE_S
    for node_id in live:
        while not (_knows(cluster, node_id, live) and _has_all(cluster, node_id, names, live, in_sync=in_sync)):
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
            time.sleep(_LOOK_S)


def _knows(cluster: Cluster, node_id: int, live: Collection[int]) -> bool:
    answer = cluster.metadata(node_id)
    return (
        answer is not None and {each.node_id for each in answer.brokers} == set(live) and answer.controller_id in live
    )


def _has_all(cluster: Cluster, node_id: int, names: Collection[str], live: Collection[int], *, in_sync: bool) -> bool:
    answer = cluster.metadata(node_id, names)
    partitions = [] if answer is None else [each for topic in answer.topics for each in topic.partitions]
    return len(partitions) == TOPICS * PARTITIONS and all(_is_led(each, live, in_sync=in_sync) for each in partitions)


def _is_led(partition: Any, live: Collection[int], *, in_sync: bool) -> bool:
    led = partition.leader_id in live
    return led and (not in_sync or set(partition.isr_nodes) == set(partition.replica_nodes) == set(live))


def _write_one_each(cluster: Cluster, names: Collection[str]) -> float:
    """Return the seconds until each partition has acknowledged a record."""
    failed: list[object] = []

    def answered(error: object, _message: object) -> None:
        if error:
            failed.append(error)

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 0, "log_level": 0})
    began = time.perf_counter()
    for name in names:
        for index in range(PARTITIONS):
            producer.produce(name, b"x", partition=index, on_delivery=answered)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed[0]
    return time.perf_counter() - began

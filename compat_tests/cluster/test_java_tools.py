"""Kafka's own tools on a cluster: what they print about replicas, and which replicas they have moved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compat_tests.clients.java_tools.tool import run, run_class
from compat_tests.cluster.tools import create, numbered, producer, read_all, send
from compat_tests.harness.clusters import Cluster

pytestmark = [pytest.mark.java, pytest.mark.long]

ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


def test_the_lines_that_a_cluster_prints(cluster: Cluster, name: str) -> None:
    where = cluster.bootstrap
    created = run(
        "topics", "--create", "--topic", name, "--partitions", "3", "--replication-factor", "3", bootstrap=where
    )
    assert created == ["exit 0", f"Created topic {name}."]
    described = run("topics", "--describe", "--topic", name, bootstrap=where)
    assert described[0] == "exit 0"
    assert "PartitionCount: 3 ReplicationFactor: 3" in described[1]
    assert len(described) == 5
    assert run("console-producer", "--topic", name, stdin="hello, world\n", bootstrap=where)[0] == "exit 0"
    consumed = run("console-consumer", "--topic", name, "--from-beginning", "--max-messages", "1", bootstrap=where)
    assert consumed[:2] == ["exit 0", "hello, world"]
    under = ["--describe", "--topic", name, "--under-replicated-partitions"]
    assert run("topics", *under, bootstrap=where) == ["exit 0"]
    lost = cluster.wait_for_leader(name, 0)
    cluster.kill(lost)
    for index in range(3):
        cluster.wait_for_isr(name, index, cluster.others(lost))
    assert len(run("topics", *under, bootstrap=where)) == 4
    offsets = run("get-offsets", "--topic", name, bootstrap=where)
    assert sum(int(line.rpartition(":")[2]) for line in offsets[1:]) == 1


def test_preferred_leaders_are_elected(cluster: Cluster, name: str) -> None:
    topic = create(cluster, name)
    preferred = cluster.wait_for_leader(topic, 0)
    cluster.stop(preferred)
    other = cluster.wait_for_leader(topic, 0, other_than=preferred)
    cluster.start(preferred)
    cluster.wait_for_isr(topic, 0, cluster.node_ids)
    assert cluster.leader_of(topic, 0) == other
    chosen = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    told = run_class(ELECTION, "--bootstrap-server", cluster.bootstrap, *chosen)
    assert told[0] == "exit 0", told
    assert cluster.wait_for_leader(topic, 0, other_than=other) == preferred
    again = run_class(ELECTION, "--bootstrap-server", cluster.bootstrap, *chosen)
    assert again == ["exit 0", f"Valid replica already elected for partitions {topic}-0"]


def test_a_partition_moves_to_other_brokers(cluster: Cluster, name: str, tmp_path: Path) -> None:
    topic = create(cluster, name)
    client = producer(cluster, enable_idempotence=True)
    before, after = numbered("before", 100), numbered("after", 100)
    assert send(client, topic, before).acknowledged == before
    replicas = cluster.partition(topic, 0).replica_nodes
    wanted = replicas[1:]  # without the leader
    plan = tmp_path / "plan.json"
    moved = {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": wanted}]}
    plan.write_text(json.dumps(moved))
    server = ["--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan)]
    assert run_class(REASSIGN, *server, "--execute")[0] == "exit 0"

    def complete() -> bool:
        told = run_class(REASSIGN, *server, "--verify")
        return any("is completed" in line or "is complete" in line for line in told)

    cluster.wait_for("the end of the reassignment", complete)

    def known_everywhere() -> bool:
        return all(cluster.partition(topic, 0, of=each).replica_nodes == wanted for each in cluster.node_ids)

    cluster.wait_for("all brokers knowing the new replicas", known_everywhere)
    assert cluster.leader_of(topic, 0) in wanted
    assert send(client, topic, after).acknowledged == after
    assert read_all(cluster, topic) == before + after

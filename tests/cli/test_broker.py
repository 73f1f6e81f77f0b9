"""`kbroker broker`, and the replica options of `kbroker topic`, on a cluster in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from kafka.errors import KafkaConnectionError

from kbroker import Cluster
from kbroker.admin.brokers import listed_brokers
from tests.cli.conftest import CommandLine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=4, config={"replica.fetch.backoff.ms": 100, "auto.leader.rebalance.enable": False}) as found:
        yield found


@pytest.fixture(scope="module")
def kbroker(cluster: Cluster) -> CommandLine:
    return CommandLine(cluster.bootstrap_servers)


def described(kbroker: CommandLine, name: str) -> list[tuple[int, list[int]]]:
    (topic,) = kbroker.ok("topic", "describe", name, "--json").json
    return [(each["leader"], each["replicas"]) for each in topic["partitions"]]


def test_brokers_are_listed_and_described(kbroker: CommandLine) -> None:
    listed = kbroker.ok("broker", "list", "--json").json
    assert [each["id"] for each in listed] == [1, 2, 3, 4]
    assert sum(each["controller"] for each in listed) == 1
    assert sum(each["leads"] for each in listed) == 8, "the coordinators' topics"
    told = kbroker.ok("broker", "describe", "2", "--json").json
    assert told["log_dirs"][0]["replicas"] == told["replicas"] == listed[1]["replicas"]
    assert "usable bytes" in kbroker.ok("broker", "describe", "2").text.lower()
    assert "no live broker has id 9" in kbroker.fails("broker", "describe", "9")


@pytest.mark.long
def test_a_topic_is_moved_and_its_leader_elected(kbroker: CommandLine) -> None:
    kbroker.ok("topic", "create", "moved", "-p", "2", "-r", "3")
    kbroker.ok("produce", "moved", stdin=b"a\nb\n")
    assert "moved" in kbroker.ok("topic", "reassign", "moved", "--to", "1,2,3", "--wait").text
    kbroker.ok("topic", "reassign", "moved", "-p", "1", "--to", "4,2,1", "--wait")
    assert [replicas for _, replicas in described(kbroker, "moved")] == [[1, 2, 3], [4, 2, 1]]
    kbroker.ok("topic", "elect", "moved")
    assert [leader for leader, _ in described(kbroker, "moved")] == [1, 4]
    assert kbroker.ok("topic", "elect", "moved").text == "0 partitions have another leader\n"
    assert len(kbroker.ok("topic", "reassign").lines) == 1, "nothing but the head"
    assert kbroker.ok("consume", "moved", "--from-beginning", "--count", "2").text.split() in (["a", "b"], ["b", "a"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["moved", "--to", "1,1"], "twice"),
        (["moved", "--to", "one"], "broker ids"),
        (["moved", "--to", "1", "--cancel"], "exclude"),
        (["--to", "1"], "name the topic"),
    ],
)
def test_what_cannot_be_moved(kbroker: CommandLine, arguments: list[str], said: str) -> None:
    done = kbroker("topic", "reassign", *arguments)
    assert done.status == 2
    assert said in done.err


def test_brokers_that_do_not_live_take_nothing(kbroker: CommandLine) -> None:
    kbroker.ok("topic", "create", "stays", "-r", "2")
    assert "cannot move stays-0" in kbroker.fails("topic", "reassign", "stays", "--to", "1,9")
    assert "stays has no partition 7" in kbroker.fails("topic", "reassign", "stays", "-p", "7", "--to", "1,2")
    assert "does not exist" in kbroker.fails("topic", "reassign", "nothing", "--to", "1,2")


def test_a_broker_that_nobody_has_heard_of_is_not_drained(kbroker: CommandLine) -> None:
    assert "no live broker has id 77" in kbroker.fails("broker", "drain", "77")


def test_a_broker_is_drained(kbroker: CommandLine) -> None:
    kbroker.ok("topic", "create", "drained", "-p", "4", "-r", "2")
    before = described(kbroker, "drained")
    shown = kbroker.ok("broker", "drain", "3", "--dry-run").lines
    assert any(each.startswith("drained") for each in shown)
    assert described(kbroker, "drained") == before
    kbroker.ok("broker", "drain", "3")
    assert all(3 not in replicas and len(replicas) == 2 for _, replicas in described(kbroker, "drained"))
    listed = {each["id"]: each for each in kbroker.ok("broker", "list", "--json").json}
    assert (listed[3]["leads"], listed[3]["replicas"]) == (0, 0)
    assert kbroker.ok("broker", "drain", "3").text == "0 replicas were moved away from broker 3\n"


def test_json_is_json(kbroker: CommandLine) -> None:
    json.loads(kbroker.ok("broker", "list", "--json").text)


def test_the_apis_of_a_broker_are_listed(anywhere):
    (broker,) = anywhere.ok("broker", "list", "--json").json
    found = {each["key"]: each for each in anywhere.ok("broker", "api-versions", str(broker["id"]), "--json").json}
    assert found[18] == {"key": 18, "api": "ApiVersions", "min_version": 0, "max_version": 5}
    assert {0, 1, 3, 43, 46} <= found.keys()
    header, *rows = anywhere.ok("broker", "api-versions", str(broker["id"])).lines
    assert header.split() == ["KEY", "API", "LOWEST", "HIGHEST"]
    assert len(rows) == len(found)
    assert "no live broker has id 77" in anywhere.fails("broker", "api-versions", "77")


def test_the_id_of_the_cluster(anywhere):
    (found,) = anywhere.ok("broker", "cluster-id").lines
    assert len(found) == 22
    assert anywhere.ok("broker", "cluster-id", "-o", "json").json == {"cluster_id": found}
    listed = anywhere.ok("broker", "list", "--include-fenced-brokers", "--json").json
    assert [(each["id"], each["fenced"]) for each in listed] == [(1, False)]


def test_what_lies_in_directories(anywhere, name):
    anywhere.ok("topic", "create", name, "-p", "2")
    anywhere.ok("produce", name, "-p", "1", stdin=b"a\n")
    told = anywhere.ok("broker", "log-dirs", "--topic", name, "--json").json
    assert [(each["broker"], each["partition"], each["offset_lag"], each["is_future"]) for each in told] == [
        (1, 0, 0, False),
        (1, 1, 0, False),
    ]
    assert told[0]["bytes"] == 0 < told[1]["bytes"]
    assert len(anywhere.ok("broker", "log-dirs", "1", "--topic", name).lines) == 3
    assert "no live broker has id 9; " in anywhere.fails("broker", "log-dirs", "9")


def test_the_apis_of_all_brokers(anywhere):
    told = anywhere.ok("broker", "api-versions", "--json").json
    assert {each["broker"] for each in told} == {1}
    of_one = anywhere.ok("broker", "api-versions", "1", "--json").json
    assert [{"broker": 1, **each} for each in of_one] == told


def test_a_broker_is_forgotten_where_that_is_known(cli):
    said = cli.fails("broker", "unregister", "7", "--yes")
    assert said == "this cluster does not serve UnregisterBroker"
    assert cli("broker", "unregister", "7", stdin=b"n\n").status == 130


@pytest.mark.java
def test_apache_kafka_forgets_no_broker_that_it_does_not_know(apache_kafka):
    said = CommandLine(apache_kafka.bootstrap).fails("broker", "unregister", "7", "--yes")
    assert said.startswith("cannot unregister broker 7: ")
    assert "BROKER_ID_NOT_REGISTERED" in said


def test_who_is_gone_is_told():
    with Cluster(brokers=3) as cluster:
        cli = CommandLine(cluster.bootstrap_servers)
        cli.ok("topic", "create", "t", "-p", "2", "-r", "3")
        assert cli.ok("broker", "list").err == ""
        cluster.brokers[2].kill()
        deadline = time.monotonic() + 60
        while "broker 2 is gone" not in (done := cli.ok("broker", "list", "--json")).err:
            assert time.monotonic() < deadline
        has = sum(each["replicas"] for each in done.json) // 2  # every topic has three replicas, also internal ones
        assert done.err == f"kbroker: broker 2 is gone, and has {has} replicas: none of them is in sync\n"
        assert [each["id"] for each in done.json] == [1, 3]


def test_a_broker_that_has_just_ended_is_not_asked_for_the_list(cli, monkeypatch):
    """For some seconds the client may choose this broker, because Metadata still has its address."""
    ended = [KafkaConnectionError("it has ended")]

    def listed(admin, partitions):
        if ended:
            raise ended.pop()
        return listed_brokers(admin, partitions)

    monkeypatch.setattr("kbroker.cli.broker.listed_brokers", listed)
    assert [each["id"] for each in cli.ok("broker", "list", "--json").json] == [1]
    assert not ended

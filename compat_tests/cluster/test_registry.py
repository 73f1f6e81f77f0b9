"""A cluster's schema registry on a real ZooKeeper: processes are killed, and Apache Kafka's broker is a leader."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient, TopicPartition

from compat_tests.harness.brokers import free_port
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker import handlers
from kbroker.controller.features import NEW_CLUSTER
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from tests.cluster.good_records import Sending
from tests.record_checks.conftest import ORDER, order
from tests.registry_api.beside import Clients, Process, ended, record
from tests.registry_api.conftest import Http
from tests.tries import FORM

pytestmark = [pytest.mark.java, pytest.mark.long]

SESSION_S: Final = 3.0
SESSION: Final = f"zookeeper.session.timeout.ms={SESSION_S * 1000:.0f}"
PATIENCE_S: Final = 60.0
_SAFE_DOWNGRADE: Final = 2
handlers.load_all(in_cluster=True)  # which answers there are to what only a cluster is asked


class Node(Process):
    """A broker of a cluster with a registry."""

    def __init__(self, directory: Path, zookeeper: ZooKeeper, number: int) -> None:
        self.at = f"127.0.0.1:{free_port()}"
        registry = f"127.0.0.1:{free_port()}"
        self.url = f"http://{registry}"
        settings = (
            f"broker.id={number}",
            f"zookeeper.connect={zookeeper.bootstrap}",
            SESSION,
            "default.replication.factor=3",
            "controlled.shutdown.retry.backoff.ms=100",
        )
        pairs = [each for setting in settings for each in ("--set", setting)]
        data = str(directory / f"data{number}")
        super().__init__(
            directory,
            f"broker{number}",
            "start",
            "--listen",
            self.at,
            "--data-dir",
            data,
            "--registry",
            registry,
            *pairs,
        )


def leader(at: str) -> int:
    client = KafkaAdminClient(bootstrap_servers=at)
    try:
        (topic,) = client.describe_topics(["_schemas"])
        return int(topic["partitions"][0]["leader_id"]) if topic["partitions"] else -1
    finally:
        client.close()


@pytest.mark.skipif(FORM != "long", reason="tests/cluster kills leaders, too: only with KBROKER_TESTS=long")
def test_leaders_are_killed(kafka39_libs: Path, tmp_path: Path) -> None:
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        nodes = {number: Node(tmp_path, zookeeper, number) for number in (1, 2, 3)}
        urls = [each.url for each in nodes.values()]
        with ended(*nodes.values()):
            for each in nodes.values():
                each.start()
            with Clients(urls, 4) as clients:
                clients.wait_for(20)
                for number in range(6):
                    first = leader(",".join(each.at for each in nodes.values()))
                    if number % 3 == 2:
                        assert nodes[first].end()[0] == 0
                    else:
                        nodes[first].kill()
                    clients.wait_for(10)
                    nodes[first].start()
                    clients.wait_for(5)
            clients.judge(urls)


def test_a_leader_that_is_apache_kafka(kafka39_libs: Path, tmp_path: Path) -> None:
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        node = Node(tmp_path, zookeeper, 2)
        with Kafka39(kafka39_libs, tmp_path / "kafka", zookeeper, {"node.id": "1"}) as java, ended(node):
            node.start()
            registry = Http(node.url)
            registry.raw("GET", "/subjects")  # creates the topic, which either broker may lead
            move(java.bootstrap, 2)
            until_served(registry, [])
            assert registry.register("a", record("A"))["id"] == 1
            with pytest.raises(
                KafkaException, match="INVALID_CONFIG"
            ):  # Apache Kafka does not know the config, and has no registry
                checked(java.bootstrap, "orders", 1, 1)
            move(java.bootstrap, 1)
            code, text = registry.refused("POST", "/subjects/b/versions", {"schema": record("B")})
            assert code == 50004
            assert "Broker 1 leads _schemas, and has no schema registry" in text
            move(java.bootstrap, 2)
            until_served(registry, ["a"])
            assert registry.register("b", record("B"))["id"] == 2


@pytest.mark.skipif(FORM != "long", reason="half a minute: only with KBROKER_TESTS=long")
def test_no_good_record_is_refused_while_leaders_are_killed_and_frozen(kafka39_libs: Path, tmp_path: Path) -> None:
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        nodes = {number: Node(tmp_path, zookeeper, number) for number in (1, 2, 3)}
        with ended(*nodes.values()):
            for each in nodes.values():
                each.start()
            bootstrap = ",".join(each.at for each in nodes.values())
            checked(bootstrap, "orders", 6, 3)

            def register(number: int) -> int:
                fields = [*ORDER["fields"], {"name": f"f{number}", "type": ["null", "long"], "default": None}]
                url = nodes[number % 3 + 1].url
                return int(Http(url).register("orders-value", {**ORDER, "fields": fields})["id"])

            with Sending(bootstrap, "orders", range(6), register) as sending:
                for what in ("freeze", "kill", "freeze"):
                    sending.until_more(50, 10)
                    first = nodes[leader(bootstrap)]
                    if what == "kill":
                        first.kill()
                        sending.until_more(50, 10)
                        first.start()
                    else:
                        first.freeze(2 * SESSION_S)
            assert sending.refused == []
            assert sending.acknowledged == sending.sent


@pytest.mark.skipif(FORM != "long", reason="what needs Apache Kafka's answers only: with KBROKER_TESTS=long")
def test_schemas_are_copied_from_apache_kafka(kafka39_libs: Path, tmp_path: Path) -> None:
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        node = Node(tmp_path, zookeeper, 2)
        with ended(node):
            node.start()
            checked(node.at, "orders", 1, 1)
            known = Http(node.url).register("orders-value", ORDER)["id"]
            lowered = [FeatureUpdateKey(each, 0, upgrade_type=_SAFE_DOWNGRADE) for each in NEW_CLUSTER]
            with WireClient(node.at) as client:  # Kafka 3.9 on ZooKeeper has none of these features
                assert client.ask(UpdateFeaturesRequest(feature_updates=lowered), 1).error_code == 0
            with Kafka39(kafka39_libs, tmp_path / "kafka", zookeeper, {"node.id": "1"}) as java:
                move(java.bootstrap, 1)
                told: list[int] = []
                producer = Producer({"bootstrap.servers": node.at})
                for number in (known, 99_999, known):
                    producer.produce(
                        "orders", order(number), on_delivery=lambda error, _: told.append(error.code() if error else 0)
                    )
                    assert producer.flush(PATIENCE_S) == 0
                assert told == [0, KafkaError.INVALID_RECORD, 0]


def checked(at: str, name: str, partitions: int, replicas: int) -> None:
    """Create a topic whose records are checked, as soon as all brokers can check them."""
    topic = NewTopic(name, partitions, replicas, config={"confluent.value.schema.validation": "true"})
    admin = AdminClient({"bootstrap.servers": at})  # which must live as long as the request
    admin.create_topics([topic])[name].result(PATIENCE_S)


def move(at: str, broker: int) -> None:
    """Move the topic, which Apache Kafka might not know yet."""
    client = KafkaAdminClient(bootstrap_servers=at)
    end = time.monotonic() + PATIENCE_S
    try:
        while leader(at) != broker:
            assert time.monotonic() < end
            client.alter_partition_reassignments({TopicPartition("_schemas", 0): [broker]})
            time.sleep(0.2)
    finally:
        client.close()


def until_served(registry: Http, subjects: list[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        status, body = registry.raw("GET", "/subjects")
        if status == 200:
            assert json.loads(body) == subjects
            return
        assert time.monotonic() < end, body
        time.sleep(0.1)

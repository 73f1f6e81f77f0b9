"""kbroker and Apache Kafka 3.9.1 in one cluster whose brokers reach each other over TLS, certificates on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.clients.common import wait_for
from compat_tests.clients.confluent.tools import metadata
from compat_tests.harness.brokers import KBroker, free_port
from compat_tests.harness.certificates import Authority
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper

pytestmark = [pytest.mark.java, pytest.mark.long]


class Both(KBroker):
    """Kbroker with a listener of each protocol; the address for clients is that of PLAINTEXT."""

    def _command(self) -> list[str]:
        command = super()._command()
        at = command.index("--listen")
        command[at : at + 2] = ["--set", "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"]
        return command

    def _ready(self) -> bool:
        ready = super()._ready()
        self.bootstrap = self.bootstrap.split(",")[0]
        return ready


def test_they_replicate_to_each_other(kafka39_libs: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    settings = {
        "inter.broker.listener.name": "SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.sign("broker", "IP:127.0.0.1")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "min.insync.replicas": "2",
    }
    with ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper:
        java = Kafka39(kafka39_libs, tmp_path / "java", zookeeper, {**settings, "node.id": "1"})
        java.own = {"listeners": f"PLAINTEXT://127.0.0.1:{java.port},SSL://127.0.0.1:{free_port()}"}
        connect = {"node.id": "2", "zookeeper.connect": zookeeper.bootstrap}
        with java, Both(tmp_path / "kbroker", {**settings, **connect}) as kbroker:
            client = {"bootstrap.servers": f"{java.bootstrap},{kbroker.bootstrap}"}
            admin = AdminClient(client)
            wait_for("both brokers", lambda: (found := metadata(admin)) and len(found.brokers) == 2)
            admin.create_topics([NewTopic("orders", 4, 2)])["orders"].result(30)

            def in_sync() -> bool:
                partitions = admin.list_topics("orders", timeout=10).topics["orders"].partitions
                return len(partitions) == 4 and all(set(each.isrs) == {1, 2} for each in partitions.values())

            wait_for("all are in sync", in_sync)
            partitions = admin.list_topics("orders", timeout=10).topics["orders"].partitions
            assert {each.leader for each in partitions.values()} == {1, 2}
            failed: list[object] = []
            producer = Producer({**client, "acks": "all"})
            for number in range(1000):
                producer.produce(
                    "orders",
                    str(number),
                    partition=number % 4,
                    on_delivery=lambda error, _message: failed.append(error) if error else None,
                )
            assert producer.flush(30) == 0
            assert not failed
            consumer = Consumer({**client, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.assign([TopicPartition("orders", index, 0) for index in range(4)])
            found: set[int] = set()
            while len(found) < 1000:
                messages = consumer.consume(1000, 30)
                assert messages
                found |= {int(each.value()) for each in messages}
            consumer.close()
            assert found == set(range(1000))
            assert in_sync()

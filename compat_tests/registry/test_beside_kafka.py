"""`kbroker registry` beside Apache Kafka: several instances, which are killed, and so is the broker."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests.harness.brokers import ApacheKafka, BrokerProcess
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from kbroker.admin.transactional_partition import TransactionalPartition
from tests.registry_api.beside import Beside, Clients, ended, record
from tests.registry_api.conftest import Http
from tests.registry_api.test_instances import instances
from tests.tries import FORM

pytestmark = pytest.mark.java


class AtOneAddress(ApacheKafka):
    """An Apache Kafka whose address stays the same after a restart."""

    _known: tuple[int, int, str] | None = None

    def _addresses(self) -> tuple[int, int, str]:
        self._known = self._known or super()._addresses()
        return self._known


def check(broker: BrokerProcess, directory: Path, kills: int) -> None:
    made = instances(directory, broker.bootstrap)
    urls = [url for _, url in made]
    with ended(*(process for process, _ in made)):
        for process, _ in made:
            process.start()
        with Clients(urls, 6) as clients:
            clients.wait_for(20)
            for number in range(kills):
                process, _ = made[number % 3]
                process.kill()
                clients.wait_for(10)
                process.start()
            if isinstance(broker, Kafka39):
                broker.stop()  # after a kill, its session would first have to expire
            else:
                broker.kill()
            broker.start()
            clients.wait_for(20)
        clients.judge(urls)
        written_by_others(broker, Http(urls[0]), len(clients.acknowledged))
        for process, _ in made:
            assert process.end()[0] == 0


def written_by_others(broker: BrokerProcess, registry: Http, count: int) -> None:
    """A record without a transaction, as Confluent's registry writes it, takes effect before the next change."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    key = {"keytype": "SCHEMA", "subject": "other", "version": 1, "magic": 1}
    value = {"subject": "other", "version": 1, "id": count + 5, "schema": record("O"), "deleted": False}
    producer.produce("_schemas", json.dumps(value), json.dumps(key))
    assert producer.flush(20) == 0
    assert registry.register("a", record("A"))["id"] == count + 6
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "a",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("_schemas", 0, 0)])
    found = []
    while (message := consumer.poll(20)) is not None and message.error() is None:
        found.append(json.loads(message.value() or b"{}").get("id"))
    consumer.close()
    assert found == [*range(1, count + 1), count + 5, count + 6]


def test_beside_apache_kafka(kafka_libs: Path, tmp_path: Path) -> None:
    with AtOneAddress(kafka_libs, tmp_path / "kafka") as broker:
        check(broker, tmp_path, kills=3 if FORM == "long" else 1)


@pytest.mark.skipif(FORM != "long", reason="the same beside an older broker: only with KBROKER_TESTS=long")
def test_beside_apache_kafka_on_zookeeper(kafka39_libs: Path, tmp_path: Path) -> None:
    with (
        ZooKeeper(kafka39_libs, tmp_path / "zookeeper") as zookeeper,
        Kafka39(kafka39_libs, tmp_path / "kafka", zookeeper) as broker,
    ):
        check(broker, tmp_path, kills=3)


@pytest.mark.skipif(FORM != "long", reason="a crash at one moment: only with KBROKER_TESTS=long")
def test_a_crash_between_a_commit_and_its_marker(
    kafka_libs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka 4.4.0 may forget the marker after the restart, so EndTxn's answer alone acknowledges nothing."""
    end = TransactionalPartition.end
    with AtOneAddress(kafka_libs, tmp_path / "kafka") as broker, Beside(broker.bootstrap, 60.0) as beside:

        def end_and_kill(partition: TransactionalPartition, *, commit: bool) -> None:
            end(partition, commit=commit)
            if commit and broker.running:
                broker.kill()

        for number in range(1, 16, 3):
            beside.http.register(f"a{number}", record(f"A{number}"))
            with monkeypatch.context() as patched:
                patched.setattr(TransactionalPartition, "end", end_and_kill)
                registering = threading.Thread(target=beside.http.register, args=(f"b{number}", record(f"B{number}")))
                registering.start()
                while broker.running:
                    time.sleep(0.01)
                patched.undo()
                broker.start()
                registering.join(60)
            with Beside(broker.bootstrap) as other:
                assert other.http.register(f"c{number}", record(f"C{number}"))["id"] == number + 2
                found = other.http.ok("GET", f"/schemas/ids/{number + 1}")["schema"]
                assert found == record(f"B{number}").replace(" ", "")

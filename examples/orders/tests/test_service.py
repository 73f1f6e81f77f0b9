"""The complete service: from an order in the database to the ledger."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kbroker import Broker, Cluster, Faults
from kbroker.testing import assert_records
from orders.clients import Kafka, Topics
from orders.ledger import Ledger
from orders.outbox import Outbox
from orders.service import Service
from shop import PATIENCE_S, Shop, order, until

QUICK = {"reconnect.backoff.ms": 10, "retry.backoff.ms": 10, "log_level": 0}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orders.db")


def place(path: str, *numbers: int) -> None:
    database = sqlite3.connect(path, timeout=PATIENCE_S)
    outbox = Outbox(database)
    with database:
        for number in numbers:
            outbox.place(order(number))
    database.close()


def booked(path: str) -> int:
    database = sqlite3.connect(path, timeout=PATIENCE_S)
    found = Ledger(database).balance("ann")
    database.close()
    return found


def wait_until_booked(service: Service, path: str, cents: int) -> None:
    def step() -> None:
        assert not service.failures
        service.wait(0.02)

    until(step, lambda: booked(path) >= cents)
    assert booked(path) == cents


def coordinator_of(cluster: Cluster, group: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return int(found.coordinator.id)


def test_an_order_reaches_the_ledger(shop: Shop, path: str) -> None:
    with Service(shop.kafka, shop.topics, path) as service:
        place(path, 1, 2, 3)
        wait_until_booked(service, path, 300)
    assert service.failures == []


def test_a_service_that_begins_anew_goes_on(shop: Shop, path: str) -> None:
    for number in range(2):
        with Service(shop.kafka, shop.topics, path) as service:
            place(path, number)
            wait_until_booked(service, path, 100 * (number + 1))


def test_its_topics_are_made_once(shop: Shop) -> None:
    shop.kafka.create(shop.topics, partitions=5)
    admin = AdminClient({"bootstrap.servers": shop.kafka.bootstrap_servers})
    assert len(admin.list_topics(shop.topics.orders, PATIENCE_S).topics[shop.topics.orders].partitions) == 1


def test_a_topic_of_somebody_else_is_left_alone(shop: Shop, kafka_topic: str, path: str) -> None:
    with Service(shop.kafka, shop.topics, path) as service:
        place(path, 1)
        wait_until_booked(service, path, 100)
    assert shop.read(kafka_topic) == []


def test_a_storm_changes_nothing(shop: Shop, kafka: Broker, kafka_faults: Faults, path: str) -> None:
    with (
        kafka_faults.storm(("Produce", "Fetch", "OffsetCommit"), seed=5, rate=0.1) as storm,
        Service(shop.kafka, shop.topics, path) as service,
    ):
        place(path, *range(20))
        wait_until_booked(service, path, 2_000)
    assert storm.hits
    assert_records(
        kafka.topics[shop.topics.invoices], [{"key": f"order-{number}"} for number in range(20)], in_any_order=True
    )


def test_a_broker_that_dies_in_a_cluster(kafka_cluster: Cluster, path: str) -> None:
    """Any broker except the one with billing's offsets: librdkafka's transactions wait for that one to return."""
    shop = Shop(kafka_cluster.bootstrap_servers)
    with Service(shop.kafka, shop.topics, path) as service:
        place(path, 1)
        wait_until_booked(service, path, 100)
        needed = coordinator_of(kafka_cluster, f"{shop.topics.orders}.billing")
        for number, broker in enumerate(kafka_cluster.brokers[each] for each in {1, 2, 3} - {needed}):
            broker.kill()
            place(path, number + 2)
            wait_until_booked(service, path, 100 * (number + 2))
            broker.start()


@pytest.mark.kafka(users={"orders": "secret"}, tls=True)
def test_with_a_login(kafka: Broker, path: str) -> None:
    settings = kafka.client_settings("orders").confluent_kafka
    with Service(Kafka(kafka.bootstrap_servers, {**QUICK, **settings}), Topics(), path) as service:
        place(path, 1)
        wait_until_booked(service, path, 100)


def test_the_command_ends_at_a_signal(kafka: Broker, path: str) -> None:
    place(path, 1)
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    command = [sys.executable, "-m", "orders", path]
    process = subprocess.Popen(command, env=environment, cwd=Path(__file__).parents[1])
    try:
        kafka.wait_for(lambda broker: "invoices" in broker.topics and broker.topics["invoices"].values(), PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()

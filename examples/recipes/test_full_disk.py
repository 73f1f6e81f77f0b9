"""A broker whose disk becomes full and then has room again: meanwhile nothing is written, and nothing is lost."""

from __future__ import annotations

from confluent_kafka import KafkaError, Producer
from kafka import KafkaProducer

from kbroker import Broker, Faults
from kbroker.testing import assert_records


def test_a_producer_holds_on(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10, "log_level": 0})
    with kafka_faults.full_disk() as disk:
        client.produce("orders", "one")
        disk.wait(3, timeout=20)
        assert_records(topic, [])
    assert client.flush(20) == 0
    assert_records(topic, ["one"])
    client.close()


def test_a_producer_gives_up_in_time(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 500, "log_level": 0})
    told: list[KafkaError | None] = []
    with kafka_faults.full_disk():
        client.produce("orders", "one", on_delivery=lambda error, _: told.append(error))
        assert client.flush(20) == 0
    (error,) = told
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert_records(topic, [])
    client.close()


def test_kafka_python(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, retry_backoff_ms=10)
    with kafka_faults.full_disk() as disk:
        sent = client.send("orders", b"one")
        disk.wait(3, timeout=20)
    assert sent.get(timeout=20).offset == 0
    assert_records(topic, ["one"])
    client.close()

"""A slow broker: which calls wait, which time out, and which requests were executed all the same."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from kbroker import Broker, Faults
from kbroker.testing import assert_records


def test_a_producer_waits(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    with kafka_faults.slow_disk(300) as fault:
        begun = time.monotonic()
        client.produce("orders", "one")
        assert client.flush(20) == 0
    assert time.monotonic() - begun >= 0.3
    assert fault.hits
    assert_records(topic, ["one"])
    client.close()


def test_a_producer_that_gives_up_may_have_written(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 1_500, "log_level": 0})
    told: list[KafkaError | None] = []
    with kafka_faults.drop("Produce"):
        client.produce("orders", "one", on_delivery=lambda error, _: told.append(error))
        assert client.flush(20) == 0
    (error,) = told
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT
    assert_records(topic, ["one"])
    client.close()


def test_kafka_python_gives_up(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    client = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    with kafka_faults.delay("Produce", 0.5), pytest.raises(KafkaTimeoutError):
        client.send("orders", b"one").get(timeout=0.1)
    client.flush(timeout=20)
    assert_records(topic, ["one"])
    client.close()


def test_a_consumer_waits_and_keeps_its_place(kafka: Broker, kafka_faults: Faults) -> None:
    kafka.topics.create("orders").produce("one")
    client = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    client.subscribe(["orders"])
    with kafka_faults.delay("Fetch", 0.3, times=1) as fault:
        message = client.poll(20)
    assert fault.hits == 1
    assert message is not None
    assert message.value() == b"one"
    assert len(kafka.groups["billing"].members) == 1
    client.close()

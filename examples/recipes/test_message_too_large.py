"""A message that is too large: the client or the broker refuses it, and the next message is not affected."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError
from confluent_kafka import KafkaError, KafkaException, Producer

from kbroker import Broker
from kbroker.testing import assert_no_requests, assert_records


def test_the_client_refuses_what_is_over_its_own_limit(kafka: Broker) -> None:
    kafka.topics.create("orders")
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    with pytest.raises(KafkaException) as refused:
        client.produce("orders", b"x" * 2_000_000)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    client.flush(20)
    assert_no_requests(kafka.requests, "Produce")
    client.close()


def test_the_broker_refuses_what_is_over_the_topics_limit(kafka: Broker) -> None:
    topic = kafka.topics.create("orders", config={"max.message.bytes": 1000})
    client = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    told: list[KafkaError | None] = []
    for value in (b"x" * 2000, b"small"):
        client.produce("orders", value, on_delivery=lambda error, _: told.append(error))
        assert client.flush(20) == 0
    refused, taken = told
    assert refused is not None
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert taken is None
    assert_records(topic, ["small"])
    client.close()


def test_aiokafka(kafka: Broker) -> None:
    topic = kafka.topics.create("orders", config={"max.message.bytes": 1000})

    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as client:
            with pytest.raises(MessageSizeTooLargeError):
                await client.send_and_wait("orders", b"x" * 2000)
            await client.send_and_wait("orders", b"small")

    asyncio.run(produce())
    assert_records(topic, ["small"])

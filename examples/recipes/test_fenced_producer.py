"""A producer that was thought dead returns: its transaction is refused, and its writes are undone."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced
from confluent_kafka import KafkaError, KafkaException, Producer

from kbroker import Broker
from kbroker.testing import assert_records


def producer(kafka: Broker) -> Producer:
    made = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "billing-0", "log_level": 0})
    made.init_transactions(20)
    return made


def test_confluent_kafka(kafka: Broker) -> None:
    topic = kafka.topics.create("invoices")
    first = producer(kafka)
    first.begin_transaction()
    first.produce("invoices", "from the first")
    assert first.flush(20) == 0

    second = producer(kafka)  # a restart, while the first is only slow
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(20)
    assert refused.value.args[0].fatal()
    assert refused.value.args[0].code() == KafkaError._FENCED

    second.begin_transaction()
    second.produce("invoices", "from the second")
    second.commit_transaction(20)
    assert_records(topic, ["from the second"])
    assert_records(topic, [{"transaction": "aborted"}, {"transaction": "committed"}], isolation="read_uncommitted")
    with pytest.raises(KafkaException):  # every request to it fails like this
        first.close()
    second.close()


def test_aiokafka(kafka: Broker) -> None:
    topic = kafka.topics.create("invoices")

    async def fenced() -> None:
        def producer() -> AIOKafkaProducer:
            return AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="billing-0")

        async with producer() as first:
            await first.begin_transaction()
            await first.send_and_wait("invoices", b"from the first")
            async with producer() as second:
                with pytest.raises(ProducerFenced):
                    await first.commit_transaction()
                async with second.transaction():
                    await second.send_and_wait("invoices", b"from the second")

    asyncio.run(fenced())
    assert_records(topic, ["from the second"])

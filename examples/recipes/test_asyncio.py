"""Tests with coroutines: the fixtures are ordinary ones, and the broker has its own event loop.

`pip install pytest-asyncio`; or without it asyncio.run() in an ordinary test.
"""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kbroker import Broker, ErrorCode, Faults
from kbroker.testing import assert_records


@pytest.mark.asyncio
async def test_a_service_of_coroutines(kafka: Broker, kafka_faults: Faults, kafka_topic: str) -> None:
    with kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=1) as fault:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.send_and_wait(kafka_topic, b"one")
    assert fault.hits == 1
    async with AIOKafkaConsumer(
        kafka_topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
    ) as consumer:
        message = await asyncio.wait_for(consumer.getone(), 20)
    assert message.value == b"one"


@pytest.mark.asyncio
async def test_waiting_without_standing_in_the_way(kafka: Broker, kafka_topic: str) -> None:
    async def later() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.send_and_wait(kafka_topic, b"one")

    sending = asyncio.create_task(later())
    # A blocking call in a test's thread would stop the test's own coroutines, so it runs in another thread.
    await asyncio.to_thread(assert_records, kafka.topics[kafka_topic], ["one"], timeout=20)
    await sending


def test_without_a_plugin(kafka: Broker, kafka_topic: str) -> None:
    async def produce() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
            await producer.send_and_wait(kafka_topic, b"one")

    asyncio.run(produce())
    assert_records(kafka.topics[kafka_topic], ["one"])

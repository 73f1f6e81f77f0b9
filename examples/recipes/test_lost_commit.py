"""A commit is lost: handled messages are delivered again, after a restart or a rebalance."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from confluent_kafka import Consumer, KafkaException

from kbroker import Broker, ErrorCode, Faults
from kbroker.testing import assert_committed, assert_requested


def consumer(kafka: Broker) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    made.subscribe(["orders"])
    return made


def test_a_commit_that_is_refused(kafka: Broker, kafka_faults: Faults) -> None:
    kafka.topics.create("orders").produce("one")
    first = consumer(kafka)
    message = first.poll(20)
    assert message is not None
    with (
        kafka_faults.fail("OffsetCommit", ErrorCode.ILLEGAL_GENERATION, times=1, group="billing"),
        pytest.raises(KafkaException),
    ):
        first.commit(message=message, asynchronous=False)
    first.close()
    assert_committed(kafka.groups["billing"], {("orders", 0): None})

    second = consumer(kafka)
    again = second.poll(20)
    assert again is not None
    assert (again.value(), again.offset()) == (b"one", 0)
    second.close()


def test_a_commit_of_which_only_the_answer_is_lost(kafka: Broker, kafka_faults: Faults) -> None:
    kafka.topics.create("orders").produce("one")
    client = consumer(kafka)
    message = client.poll(20)
    assert message is not None
    with kafka_faults.disconnect("OffsetCommit", "before", times=1) as fault:
        client.commit(message=message, asynchronous=False)
    assert fault.hits == 1
    assert_committed(kafka.groups["billing"], {("orders", 0): 1})
    assert_requested(kafka.requests, "OffsetCommit", 2, group="billing")
    client.close()


def test_aiokafka(kafka: Broker, kafka_faults: Faults) -> None:
    kafka.topics.create("orders").produce("one")

    async def read_and_commit() -> int:
        client = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with client:
            message = await asyncio.wait_for(client.getone(), 20)
            await client.commit()
            return int(message.offset)

    with (
        kafka_faults.fail("OffsetCommit", ErrorCode.REBALANCE_IN_PROGRESS, times=1),
        pytest.raises(CommitFailedError),
    ):
        asyncio.run(read_and_commit())
    assert asyncio.run(read_and_commit()) == 0, "it comes again"
    assert_committed(kafka.groups["billing"], {("orders", 0): 1})

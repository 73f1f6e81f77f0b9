"""A rebalance while a message is handled: another member reads it again, and the first member's commit is refused."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from kbroker import Broker, ErrorCode, Faults, SteeredClock
from kbroker.testing import assert_committed


def consumer(kafka: Broker, name: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "client.id": name,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 500,
            "log_level": 0,
        }
    )
    made.subscribe(["orders"])
    return made


def read(client: Consumer) -> Message:
    message = client.poll(20)
    assert message is not None
    assert message.error() is None
    return message


def test_a_message_is_handled_by_two_members(kafka: Broker, kafka_clock: SteeredClock) -> None:
    kafka.topics.create("orders").produce("one")
    group = kafka.groups["billing"]

    first = consumer(kafka, "first")
    message = read(first)  # ... and is busy with it, while another member joins
    second = consumer(kafka, "second")
    kafka.wait_for(lambda _: group.state == "PreparingRebalance")
    kafka_clock.advance(minutes=6)  # longer than max.poll.interval.ms: the group continues without the first
    assert read(second).value() == message.value()

    with pytest.raises(KafkaException) as refused:
        first.commit(message=message, asynchronous=False)
    assert refused.value.args[0].code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION)
    assert_committed(group, {("orders", 0): None})
    second.commit(asynchronous=False)
    assert_committed(group, {("orders", 0): 1})
    second.close()
    first.close()


def test_a_member_is_told_of_a_rebalance_and_goes_on(kafka: Broker, kafka_faults: Faults) -> None:
    topic = kafka.topics.create("orders")
    topic.produce("one")
    client = consumer(kafka, "only")
    read(client)
    client.commit(asynchronous=False)
    with kafka_faults.fail("Heartbeat", ErrorCode.REBALANCE_IN_PROGRESS, times=1) as fault:
        fault.wait(timeout=20)
        topic.produce("two")
        assert read(client).value() == b"two"
    client.close()

"""A transaction that takes longer than its timeout: the coordinator aborts it and fences its producer."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from kbroker import Broker, SteeredClock
from kbroker.testing import assert_records


def test_what_is_open_for_too_long_is_undone(kafka: Broker, kafka_clock: SteeredClock) -> None:
    topic = kafka.topics.create("invoices")
    client = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": "billing-0",
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    client.init_transactions(20)
    client.begin_transaction()
    client.produce("invoices", "late")
    assert client.flush(20) == 0
    assert_records(topic, [{"transaction": "open"}], isolation="read_uncommitted")
    topic.produce("of somebody else")
    assert_records(topic, ["of somebody else"])
    assert consumed(kafka) is None, "what lies behind an open transaction is not given out"

    kafka_clock.advance(seconds=75)  # the coordinator checks every 10 seconds
    assert_records(topic, [{"transaction": "aborted"}, {"transaction": None}], isolation="read_uncommitted", timeout=10)
    assert consumed(kafka) == b"of somebody else"
    with pytest.raises(KafkaException):
        client.commit_transaction(20)
    with pytest.raises(KafkaException):  # it is fenced, and no longer usable
        client.close()


def consumed(kafka: Broker) -> bytes | None:
    """Return the first value that a consumer gets."""
    settings = {"group.id": "reader", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    client = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "enable.partition.eof": True, **settings})
    client.subscribe(["invoices"])
    message = client.poll(20)
    client.close()
    assert message is not None
    return message.value() if message.error() is None else None

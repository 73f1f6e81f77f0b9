"""A consumer that sometimes bills an order twice: the test makes it do so every time, and then it is fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaException

from kbroker import Broker, ErrorCode, Faults
from kbroker.testing import assert_committed

Bill = Callable[[str], None]


def handle_one(consumer: Consumer, bill: Bill) -> None:
    """The service: read an order, bill it, and commit its offset."""
    message = consumer.poll(20)
    assert message is not None
    bill((message.value() or b"").decode())
    consumer.commit(message=message, asynchronous=False)


@contextmanager
def started(kafka: Broker) -> Iterator[Consumer]:
    settings = {"group.id": "billing", "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    consumer.subscribe(["orders"])
    try:
        yield consumer
    finally:
        consumer.close()


def run_into_a_rebalance(kafka: Broker, kafka_faults: Faults, bill: Bill) -> None:
    """Bill an order whose commit is refused, as in a rebalance, and then handle the messages after a restart."""
    kafka.topics.create("orders").produce("order-1")
    with (
        kafka_faults.fail("OffsetCommit", ErrorCode.ILLEGAL_GENERATION, times=1) as rebalance,
        started(kafka) as consumer,
        pytest.raises(KafkaException),
    ):
        handle_one(consumer, bill)
    assert rebalance.hits == 1
    assert_committed(kafka.groups["billing"], {("orders", 0): None})
    with started(kafka) as consumer:
        handle_one(consumer, bill)
    assert_committed(kafka.groups["billing"], {("orders", 0): 1})


def test_as_it_was(kafka: Broker, kafka_faults: Faults) -> None:
    invoices: list[str] = []
    run_into_a_rebalance(kafka, kafka_faults, invoices.append)
    assert invoices == ["order-1", "order-1"], "twice, every time"


def test_as_it_is(kafka: Broker, kafka_faults: Faults) -> None:
    invoices: dict[str, str] = {}  # by order id, like a unique key in a database
    run_into_a_rebalance(kafka, kafka_faults, lambda order: invoices.update({order: "billed"}))
    assert list(invoices) == ["order-1"]

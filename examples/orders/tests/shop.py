"""What the tests of the service share: its topics on some broker, and how to write, read and wait."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from orders.billing import Bill, Billing, bill
from orders.clients import Headers, Kafka, Topics
from orders.model import Line, Order
from orders.retries import Clock, Policy, Retries
from orders.worker import Handle, Worker

PATIENCE_S = 30.0
_QUICK: dict[str, Any] = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "heartbeat.interval.ms": 100,
    "fetch.wait.max.ms": 50,
    "log_level": 0,
}
"""In production, a client waits longer before it retries; a test would only lose time."""
_HASTY: dict[str, Any] = {"enable.idempotence": False, "linger.ms": 0}
"""For messages that a test itself writes: librdkafka takes half a second to get a producer id."""


class Shop:
    """The service's topics under names that no other test uses, and clients that are closed with it."""

    def __init__(self, bootstrap_servers: str, partitions: int = 1, **settings: Any) -> None:
        self.prefix = f"shop-{uuid.uuid4().hex[:8]}"
        self.topics = Topics.under(self.prefix)
        self.kafka = Kafka(bootstrap_servers, {**_QUICK, **settings})
        self.kafka.create(self.topics, partitions)
        self._closing: list[Callable[[], object]] = []

    def close(self) -> None:
        """Close all clients."""
        for each in reversed(self._closing):
            with contextlib.suppress(KafkaException):  # a fenced client raises again here
                each()

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return a consumer in a group of this test alone."""
        made = self.kafka.consumer(f"{self.prefix}.{group}", **more)
        self._closing.append(made.close)
        return made

    def producer(self, **more: Any) -> Producer:
        """Return a producer."""
        made = self.kafka.producer(**more)
        self._closing.append(made.close)
        return made

    def billing(self, place: int = 0, bill: Bill = bill, **more: Any) -> Billing:
        """Return one of the processes that bill orders."""
        producer = self.producer(**{"transactional.id": f"{self.prefix}.billing-{place}", **more})
        return Billing(self.consumer("billing"), producer, self.topics, bill, timeout=PATIENCE_S)

    def worker(
        self,
        handle: Handle,
        topics: Sequence[str] = (),
        policy: Policy | None = None,
        clock: Clock = time.time,
        **more: Any,
    ) -> Worker:
        """Return a worker on these topics, or on the topic of the orders."""
        retries = Retries(self.producer(), self.topics, policy, clock)
        consumer = self.consumer("work", **more)
        return Worker(consumer, topics or [self.topics.orders], handle, retries, clock)

    def send(self, topic: str, *values: bytes, headers: Headers | None = None, partition: int = -1) -> None:
        """Write messages, one after the other; the key is a message's number."""
        producer = self.producer(**_HASTY)
        for number, value in enumerate(values):
            producer.produce(topic, value, str(number), partition, headers=[*(headers or [])])
        assert producer.flush(PATIENCE_S) == 0

    def order(self, *orders: Order, partition: int = -1) -> None:
        """Write orders, as the relay does."""
        self.send(self.topics.orders, *(each.to_bytes() for each in orders), partition=partition)

    def read(self, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[Message]:
        """Return the messages that a consumer reads of a topic, from its beginning to its end."""
        consumer = self.kafka.consumer(
            f"{self.prefix}.reader", **{"enable.partition.eof": True, "isolation.level": isolation}
        )
        consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
        found: list[Message] = []
        ends: set[int | None] = set()
        deadline = time.monotonic() + PATIENCE_S
        while len(ends) < partitions:
            assert time.monotonic() < deadline, f"the end of {topic} is not reached"
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            else:
                ends.add(message.partition())
        consumer.close()
        return found

    def values(self, topic: str, **more: Any) -> list[bytes | None]:
        """Return the values of `read`."""
        return [each.value() for each in self.read(topic, **more)]

    def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        """Return the offset that a group has committed."""
        consumer = self.kafka.consumer(f"{self.prefix}.{group}")
        (found,) = consumer.committed([TopicPartition(topic, partition)], PATIENCE_S)
        consumer.close()
        return found.offset if found.offset >= 0 else None


class Timepiece:
    """A clock that a test moves. The service uses it for its own waits."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        """Return the time, in seconds since 1970."""
        return self.now


def order(number: int, cents: int = 100, customer: str = "ann") -> Order:
    """Return an order."""
    return Order(f"order-{number}", customer, (Line("tea", 1, cents),))


def until(step: Callable[[], object], holds: Callable[[], object]) -> None:
    """Repeat a step until a condition is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come to hold"
        step()

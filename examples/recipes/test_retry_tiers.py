"""A consumer that tries a failed record again after 5 s and after a minute, and then gives it up.

The pauses are the broker's: `kbroker retry-tiers create invoices --delays 5s,1m` creates topics that deliver a record
after this time. So no consumer sleeps, pauses a partition, or holds up other records. The same consumer with three
clients: confluent-kafka, aiokafka and FastStream (`pip install 'faststream[confluent]'`).

At least once: the record is written to its next tier before its offset is committed. Records of one key can change
their order; if that is wrong for you, stop at the failed record instead.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from faststream import AckPolicy
from faststream.confluent import KafkaBroker, KafkaMessage

from kbroker import Broker

NEXT = {"invoices": "invoices-retry-5s", "invoices-retry-5s": "invoices-retry-1m", "invoices-retry-1m": "dlq.invoices"}
DELAYS_MS = {"invoices-retry-5s": 200, "invoices-retry-1m": 400}
"""A test has no minute to wait: these are the same topics with shorter delays."""
PATIENCE_S = 30.0


def with_reason(headers: Any, topic: str, partition: int, offset: int, error: Exception) -> list[Any]:
    """Add where the record came from first, and why it failed now; `kbroker deadletter` shows both."""
    found = dict(headers)
    found.setdefault("__dlq.errors.topic", topic.encode())
    found.setdefault("__dlq.errors.partition", str(partition).encode())
    found.setdefault("__dlq.errors.offset", str(offset).encode())
    found["__dlq.errors.group"] = b"billing"
    found["__dlq.errors.message"] = repr(error).encode()
    return list(found.items())


def handle(value: bytes) -> None:
    if value.startswith(b"bad"):
        raise ValueError("cannot be processed")


class Shop:
    """What the test sees: each try of a record, with the topic of the try."""

    def __init__(self, kafka: Broker) -> None:
        self.kafka = kafka
        self.tries: list[tuple[str, bytes]] = []
        self.times_ms: list[float] = []
        for name in ("invoices", "dlq.invoices"):
            kafka.topics.create(name)
        for name, delay_ms in DELAYS_MS.items():
            kafka.topics.create(name, config={"delivery.delay.ms": delay_ms, "message.timestamp.type": "LogAppendTime"})

    def tried(self, topic: str, value: bytes) -> None:
        self.tries.append((topic, value))
        self.times_ms.append(time.monotonic() * 1000)

    @property
    def is_done(self) -> bool:
        return bool(self.kafka.topics["dlq.invoices"].values()) and self.kafka.groups["billing"].lag() == 0

    def check(self) -> None:
        tried = [topic for topic, value in self.tries if value == b"bad"]
        assert tried == ["invoices", "invoices-retry-5s", "invoices-retry-1m"]
        times = [at for at, (_, value) in zip(self.times_ms, self.tries, strict=True) if value == b"bad"]
        assert times[1] - times[0] >= DELAYS_MS["invoices-retry-5s"]
        assert times[2] - times[1] >= DELAYS_MS["invoices-retry-1m"]
        assert [topic for topic, value in self.tries if value == b"good"] == ["invoices"]
        (letter,) = self.kafka.topics["dlq.invoices"].records()
        assert (letter.key, letter.value) == (b"k", b"bad")
        assert dict(letter.headers)["__dlq.errors.topic"] == b"invoices"
        assert self.kafka.groups["billing"].lag() == 0


@pytest.fixture
def shop(kafka: Broker) -> Shop:
    made = Shop(kafka)
    for value in ("bad", "good"):
        kafka.topics["invoices"].produce(value, key="k")
    return made


def test_with_confluent_kafka(shop: Shop, kafka: Broker) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(list(NEXT))
    deadline = time.monotonic() + PATIENCE_S
    while not shop.is_done and time.monotonic() < deadline:
        message: Any = consumer.poll(0.1)
        if message is None or message.error():
            continue
        topic, value = message.topic(), message.value()
        shop.tried(topic, value)
        try:
            handle(value)
        except ValueError as error:
            headers = with_reason(message.headers() or [], topic, message.partition(), message.offset(), error)
            producer.produce(NEXT[topic], value, message.key(), headers=headers)
            assert producer.flush(10) == 0
        consumer.commit(message=message, asynchronous=False)
    consumer.close()

    shop.check()


def test_with_aiokafka(shop: Shop, kafka: Broker) -> None:
    async def consume() -> None:
        servers = kafka.bootstrap_servers
        settings = {"bootstrap_servers": servers, "group_id": "billing", "auto_offset_reset": "earliest"}
        async with (
            AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer,
            AIOKafkaConsumer(*NEXT, enable_auto_commit=False, **settings) as consumer,
        ):
            while not shop.is_done:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for each in records:
                        shop.tried(each.topic, each.value)
                        try:
                            handle(each.value)
                        except ValueError as error:
                            headers = with_reason(each.headers, each.topic, each.partition, each.offset, error)
                            await producer.send_and_wait(NEXT[each.topic], each.value, each.key, headers=headers)
                await consumer.commit()

    asyncio.run(asyncio.wait_for(consume(), PATIENCE_S))
    shop.check()


def test_with_faststream(shop: Shop, kafka: Broker) -> None:
    async def consume() -> None:
        broker = KafkaBroker(kafka.bootstrap_servers)

        @broker.subscriber(*NEXT, group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
        async def on_invoice(value: bytes, message: KafkaMessage) -> None:
            raw: Any = message.raw_message
            topic = raw.topic()
            shop.tried(topic, value)
            try:
                handle(value)
            except ValueError as error:
                headers = with_reason(raw.headers() or [], topic, raw.partition(), raw.offset(), error)
                texts = {name: each.decode() for name, each in headers}
                await broker.publish(value, NEXT[topic], key=raw.key(), headers=texts)

        async with broker:
            await broker.start()
            while not shop.is_done:  # noqa: ASYNC110 - the subscriber does the work
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(consume(), PATIENCE_S))
    shop.check()

"""Clients over TLS, each configured as its users do: one attempt, and its outcome.

Owns the settings of each client. An attempt lists topics and, if that works, produces a record and reads it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

TOPIC: Final = "over-tls"
WORKS: Final = "works"
REFUSED: Final = "refused"
_PATIENCE_S: Final = 4.0
_RECORD: Final = b"x" * 200_000


@dataclass(frozen=True)
class Shown:
    """The certificates that a client trusts, and its own: a PEM file with a key and a certificate."""

    ca: Path
    certificate: Path | None


Try = Callable[[str, Shown], str]


def confluent(address: str, shown: Shown) -> str:
    config: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "security.protocol": "SSL",
        "ssl.ca.location": str(shown.ca),
        "log_level": 0,
        "message.timeout.ms": int(_PATIENCE_S * 1000),
    }
    if shown.certificate is not None:
        config |= {"ssl.certificate.location": str(shown.certificate), "ssl.key.location": str(shown.certificate)}
    producer = Producer(config)
    try:
        producer.list_topics(timeout=_PATIENCE_S)
    except KafkaException:
        return REFUSED
    producer.produce(TOPIC, _RECORD)
    assert producer.flush(20) == 0
    consumer = Consumer({**config, "group.id": "confluent", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        found = consumer.poll(30)
        assert found is not None
        assert found.error() is None
        assert found.value() == _RECORD
    finally:
        consumer.close()
    return WORKS


def kafka_python(address: str, shown: Shown) -> str:
    own = None if shown.certificate is None else str(shown.certificate)
    config = {
        "bootstrap_servers": address,
        "security_protocol": "SSL",
        "ssl_cafile": str(shown.ca),
        "ssl_certfile": own,
        "ssl_keyfile": own,
    }
    try:
        producer = KafkaProducer(**config, bootstrap_timeout_ms=int(_PATIENCE_S * 1000))
    except (KafkaError, OSError):
        return REFUSED
    try:
        producer.send(TOPIC, _RECORD).get(20)
    finally:
        producer.close(5)
    consumer = KafkaConsumer(**config, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    try:
        # The topic is subscribed later: the answer to the first Metadata request, which is sent without the topic,
        # would count as one with it, and the next request follows after five minutes.
        consumer.topics()
        consumer.subscribe([TOPIC])
        found = next((record.value for record in consumer), None)
    finally:
        consumer.close()
    assert found == _RECORD, f"{address}: {found!r}"
    return WORKS


def aio(address: str, shown: Shown) -> str:
    context = ssl.create_default_context(cafile=str(shown.ca))
    if shown.certificate is not None:
        context.load_cert_chain(shown.certificate)

    async def work() -> str:
        config = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": context}
        producer = AIOKafkaProducer(**config)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await producer.start()
        except (AioKafkaError, OSError, TimeoutError):
            await producer.stop()
            return REFUSED
        try:
            await producer.send_and_wait(TOPIC, _RECORD)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(TOPIC, **config, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(30):
                found = await consumer.getone()
            assert found.value == _RECORD
        finally:
            await consumer.stop()
        return WORKS

    return asyncio.run(work())


CLIENTS: Final[dict[str, Try]] = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aio}

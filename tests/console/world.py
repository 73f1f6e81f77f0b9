"""A cluster with something of everything, for tests, screenshots and benchmarks of the console.

Owns what the cluster contains: topics with records of many kinds, groups of both protocols with members, an open
transaction, users, quotas. Times and values come from a seed.
"""

from __future__ import annotations

import io
import json
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fastavro
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

HOSTILE = '<script>document.title="broken"</script><img src=x onerror=alert(1)>"\'&'
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "total", "type": "double"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
    ],
}
_CITIES = ("Vienna", "Lisbon", "Oslo", "Accra", "Lima", "Kyoto")
_WORDS = ("lamp", "desk", "chair", "clock", "shelf", "rug")


def order(random_: random.Random, number: int) -> dict[str, Any]:
    """Return an order as JSON."""
    return {
        "id": number,
        "user": {"id": str(random_.randrange(50)), "city": random_.choice(_CITIES)},
        "items": [{"name": random_.choice(_WORDS), "price": random_.randrange(5, 300)} for _ in range(3)],
        "paid": random_.random() < 0.7,
    }


def avro(value: dict[str, Any], schema_id: int = 42) -> bytes:
    """Return a value as Confluent's serializer writes it."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(ORDER), value)
    return struct.pack(">bI", 0, schema_id) + body.getvalue()


TOPICS = {
    "orders": (6, {"retention.ms": "604800000"}),
    "payments": (3, {}),
    "customers": (3, {"cleanup.policy": "compact"}),
    "clicks": (12, {"compression.type": "zstd"}),
    "orders-avro": (2, {}),
    "measurements": (2, {}),
    "audit-log": (1, {"retention.ms": "-1"}),
    "dlq.orders": (1, {}),
    "hostile": (1, {}),
    "empty": (1, {}),
}


def make(bootstrap: str, *, replicas: int = 1, orders: int = 600) -> None:
    """Create topics, and write records into them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics(
        [NewTopic(name, count, replicas, config=configs) for name, (count, configs) in TOPICS.items()]
    )
    for each in made.values():
        each.result(20)
    random_ = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    begun = int(time.time() * 1000) - 3_600_000
    for number in range(orders):
        value = json.dumps(order(random_, number)).encode()
        at = begun + number * 3_600_000 // orders
        user = str(random_.randrange(50)).encode()
        headers = [("trace", f"{number:032x}".encode()), ("source", b"shop")]
        producer.produce("orders", value, user, timestamp=at, headers=headers)
        if number % 3 == 0:
            paid = {"order": number, "cents": random_.randrange(100, 90_000)}
            producer.produce("payments", json.dumps(paid).encode(), user, timestamp=at)
        if number % 5 == 0:
            who = {"name": f"customer {number}", "city": random_.choice(_CITIES)}
            producer.produce("customers", None if number % 50 == 0 else json.dumps(who).encode(), user, timestamp=at)
        producer.produce("clicks", f"GET /shop/{random_.choice(_WORDS)}?n={number}".encode(), user, timestamp=at)
        producer.poll(0)
    for number in range(40):
        told = {"id": number, "customer": f"c{number}", "total": number * 1.5, "items": ["lamp", "rug"]}
        producer.produce("orders-avro", avro(told), str(number).encode())
        # A message of Protobuf: field 1 a number, field 2 a text.
        producer.produce("measurements", b"\x08" + bytes([number]) + b"\x12\x06sensor", b"s")
    for number in range(12):
        told = ("orders", number % 6, number, "shipping", 5, HOSTILE if number == 11 else "Offset rejected by client.")
        names = ("topic", "partition", "offset", "group", "delivery.count", "message")
        headers = [(f"__dlq.errors.{name}", str(each).encode()) for name, each in zip(names, told, strict=True)]
        producer.produce("dlq.orders", json.dumps(order(random_, number)).encode(), b"7", headers=headers)
    producer.produce("hostile", HOSTILE.encode(), HOSTILE.encode(), headers=[(HOSTILE, HOSTILE.encode())])
    producer.produce("hostile", json.dumps({HOSTILE: [HOSTILE]}).encode(), b"json")
    producer.produce("hostile", b"\x00\xff\x00\xfe" * 64, b"binary")
    producer.produce("hostile", b"x" * 200_000, b"large")
    assert producer.flush(30) == 0
    producer.close()


def schedule(bootstrap: str) -> None:
    """Create a schedule topic with pending records: some are due far away, one repeats, two cannot be delivered."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
    configs["schedule.target.topic"] = "audit-log"
    topics = [NewTopic("reminders", 1, 1, config=configs), NewTopic("closed", 1, 1), NewTopic("narrow", 1, 1)]
    for topic in topics:
        admin.create_topics([topic])[topic.topic].result(20)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True})
    told: list[tuple[bytes | None, dict[str, str]]] = [
        (b"order-17", {"x-deliver-at": "2200-01-01T00:00:00Z"}),
        (b"report", {"x-schedule": "0 0 9 * * mon-fri", "x-schedule-timezone": "Europe/Vienna"}),
        (HOSTILE.encode(), {"x-deliver-at": "2200-01-02T00:00:00Z", "x-deliver-partition": "0"}),
        (None, {"x-deliver-at": "2200-01-03T00:00:00Z"}),
        (b"lost-1", {"x-delay": "2000", "x-deliver-to": "closed"}),
        (b"large", {"x-delay": "2000", "x-deliver-to": "narrow"}),
    ]
    for key, headers in told:
        producer.produce("reminders", json.dumps({"hello": HOSTILE}).encode(), key, headers=list(headers.items()))
    assert producer.flush(30) == 0
    producer.close()
    admin.delete_topics(["closed"])["closed"].result(20)
    set_config(bootstrap, "TOPIC", "narrow", "max.message.bytes", "100")


def commit(bootstrap: str, group: str, topic: str, share: float = 0.6) -> None:
    """Create a group without members that has committed a fraction of a topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        count = TOPICS[topic][0]
        found = []
        for index in range(count):
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, index), 10)
            found.append(TopicPartition(topic, index, low + int((high - low) * share)))
        consumer.commit(offsets=found, asynchronous=False)
    finally:
        consumer.close()


@contextmanager
def members(bootstrap: str, group: str, topic: str, count: int, protocol: str = "classic") -> Iterator[list[Consumer]]:
    """Create a group with members, each of which has partitions."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":
        settings["session.timeout.ms"] = 30_000
    found = [Consumer({**settings, "client.id": f"{group}-{number}"}) for number in range(count)]
    try:
        for each in found:
            each.subscribe([topic])
        deadline = time.monotonic() + 40
        while any(not each.assignment() for each in found):
            assert time.monotonic() < deadline, f"{group} has no assignment"
            for each in found:
                each.poll(0.05)
        yield found
    finally:
        for each in found:
            each.close()


@contextmanager
def open_transaction(bootstrap: str, transactional_id: str, topic: str) -> Iterator[Producer]:
    """Create a transaction with records that is neither committed nor aborted."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", b"open")
    assert producer.flush(20) == 0
    try:
        yield producer
    finally:
        with suppress(KafkaException):  # it may have been fenced meanwhile
            producer.close()


def set_config(bootstrap: str, kind: str, name: str, key: str, value: str) -> None:
    """Set a config."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(getattr(ConfigResource.Type, kind), name, set_config={key: value})
    for each in admin.alter_configs([resource]).values():
        each.result(20)

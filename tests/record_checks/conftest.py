"""A broker with a registry, a topic that checks its records, and clients that send them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from fastavro import parse_schema, schemaless_writer

from kbroker import Broker
from tests.registry_api.conftest import Http

ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
OF_A_BAD_RECORD = KafkaError.INVALID_RECORD
BESIDE_A_BAD_RECORD = KafkaError._INVALID_DIFFERENT_RECORD
"""librdkafka's error for the other records; if there is only one bad record, all get that record's error."""


def avro(schema: Any, value: Any) -> bytes:
    """Return a value without its schema's id."""
    out = io.BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return out.getvalue()


def named(schema_id: int, data: bytes) -> bytes:
    """Return data with a schema's id before it."""
    return b"\0" + schema_id.to_bytes(4) + data


def order(schema_id: int, number: int = 7) -> bytes:
    return named(schema_id, avro(ORDER, {"id": number}))


class Shop:
    """A broker, its registry, and a client of both."""

    def __init__(self, broker: Broker, registry: Http) -> None:
        self.broker = broker
        self.registry = registry
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def register(self, subject: str, schema: Any = ORDER, **more: Any) -> int:
        return int(self.registry.register(subject, schema, **more)["id"])

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic; the configs' names are written with `_` for `.`."""
        config = {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(20)
        return name

    def checked(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Create a topic that checks its values."""
        return self.topic(name, partitions, confluent_value_schema_validation="true", **configs)

    def send(self, topic: str, records: Iterable[Any], **settings: Any) -> list[int]:
        """Send records in one batch; return the error codes. A record is a value, or (key, value, headers)."""
        codes: dict[int, int] = {}
        producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "linger.ms": 100, **settings})
        producer.list_topics(topic, 20)  # otherwise the first record may be sent before the others
        for number, record in enumerate(records):
            key, value, headers = record if isinstance(record, tuple) else (None, record, None)

            def on_delivery(error: KafkaError | None, _message: Any, number: int = number) -> None:
                codes[number] = error.code() if error else 0

            producer.produce(topic, value, key, 0, on_delivery, headers=headers)
        assert producer.flush(20) == 0
        return [codes[number] for number in sorted(codes)]

    def read(self, topic: str) -> list[Any]:
        """Return all messages of the first partition."""
        consumer = Consumer(
            {"bootstrap.servers": self.broker.bootstrap_servers, "group.id": "all", "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        try:
            while True:
                message = consumer.poll(20)
                assert message is not None
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return found
                found.append(message)
        finally:
            consumer.close()

    def values(self, topic: str) -> list[Any]:
        return [each.value() for each in self.read(topic)]


@pytest.fixture(scope="package")
def of_all() -> Iterator[Shop]:
    with Broker(registry=True) as broker:
        yield Shop(broker, Http(broker.registry_url))


@pytest.fixture
def shop(of_all: Shop) -> Shop:
    """Yield a broker in the state of its start, with a registry."""
    of_all.broker.reset()
    return of_all


def texts(headers: Sequence[tuple[str, bytes]] | None) -> dict[str, str]:
    return {name: value.decode() for name, value in headers or ()}


def as_json(schema: Any) -> str:
    return json.dumps(schema)

"""Kafka's clients with the settings of this service; no other module creates a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Topics:
    """The service's topics by purpose."""

    orders: str = "orders"
    retries: str = "orders.retries"
    dead: str = "orders.dead"
    invoices: str = "invoices"

    @staticmethod
    def under(prefix: str) -> Topics:
        """Return topics with a common prefix: of a tenant, a stage, or a test."""
        known = Topics()
        return Topics(*(f"{prefix}.{name}" for name in (known.orders, known.retries, known.dead, known.invoices)))

    @property
    def all(self) -> list[str]:
        """Return the names of all topics."""
        return [self.orders, self.retries, self.dead, self.invoices]


@dataclass(frozen=True, slots=True)
class Kafka:
    """The connection to Kafka; `settings` are librdkafka's, and override those of this module."""

    bootstrap_servers: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def producer(self, **more: Any) -> Producer:
        """Return a producer that writes each message once and in order, also when it retries."""
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "client.id": "orders",
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 30_000,  # a message not written by then fails, and the sender is told
                "log_level": 2,
                **self.settings,
                **more,
            }
        )

    def consumer(self, group: str, **more: Any) -> Consumer:
        """Return a consumer that reads only committed messages, and commits only when it is asked to."""
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "client.id": group,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 2,
                **self.settings,
                **more,
            }
        )

    def create(self, topics: Topics, partitions: int = 1) -> None:
        """Create the service's topics; existing topics stay unchanged."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, **self.settings})
        made = admin.create_topics([NewTopic(name, num_partitions=partitions) for name in topics.all])
        for done in made.values():
            try:
                done.result(30)
            except KafkaException as error:
                if error_of(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise


def error_of(exception: KafkaException) -> KafkaError:
    """Return the error that a client raised."""
    found = exception.args[0]
    assert isinstance(found, KafkaError)
    return found


def headers_of(message: Message) -> Headers:
    """Return a message's headers as a list."""
    found = message.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def header(message: Message, name: str) -> str | None:
    """Return the last header with a name, as text."""
    return next((value.decode() for key, value in reversed(headers_of(message)) if key == name), None)


def place(message: Message) -> tuple[str, int, int]:
    """Return topic, partition and offset of a consumed message."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset

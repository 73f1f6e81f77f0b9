"""Reminders: a record that arrives in 24 hours unless it is cancelled, and a report each morning, without waiting.

The shop writes a reminder into a schedule topic when an order is placed, and cancels it when the order is paid. The
broker delivers it to the topic `reminders` when it is due. The test moves the broker's clock instead of waiting.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer

from kbroker import Broker

PATIENCE_S = 30.0


class Shop:
    """The code under test: any Kafka client will do."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def placed(self, order: str) -> None:
        self._write(order, b"please pay", {"x-deliver-after": "PT24H"})

    def paid(self, order: str) -> None:
        self._write(order, None, {})

    def report_each_morning(self) -> None:
        self._write("report", b"report", {"x-schedule": "0 9 * * *"})  # x-schedule-timezone: another zone than UTC

    def _write(self, key: str, value: bytes | None, headers: dict[str, str]) -> None:
        named: list[tuple[str, str | bytes | None]] = list(headers.items())
        self._producer.produce("reminders.later", value, key, headers=named)
        assert self._producer.flush(10) == 0

    def close(self) -> None:
        self._producer.close()


class Inbox:
    """What customers get."""

    def __init__(self, bootstrap: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": "mail", "auto.offset.reset": "earliest"}
        self._consumer = Consumer(settings)
        self._consumer.subscribe(["reminders"])

    def next(self, within_s: float = PATIENCE_S) -> str | None:
        """Return the key of the next reminder; None if there is none in time."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                return (message.key() or b"").decode()
        return None

    def close(self) -> None:
        self._consumer.close()


def test_reminders(kafka: Broker) -> None:
    kafka.topics.create("reminders")
    later = {
        "schedule.enable": "true",
        "schedule.target.topic": "reminders",
        "message.timestamp.type": "LogAppendTime",
    }
    kafka.topics.create("reminders.later", config=later)
    shop, inbox = Shop(kafka.bootstrap_servers), Inbox(kafka.bootstrap_servers)

    shop.placed("order-1")
    shop.placed("order-2")
    shop.paid("order-1")
    kafka.clock.advance(hours=23)
    assert inbox.next(within_s=0.3) is None
    kafka.clock.advance(hours=2)
    assert inbox.next() == "order-2"
    assert inbox.next(within_s=0.3) is None

    shop.report_each_morning()
    for _ in range(3):
        kafka.clock.advance(hours=24)
        assert inbox.next() == "report"
    shop.close()
    inbox.close()

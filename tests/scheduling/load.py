"""A producer of schedules under faults, and the judgement of what arrives at their target.

Owns the records that are sent, what is known of each, and the comparison. Never ends a broker.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

SOURCE, TARGET = "later", "now"
PARTITIONS = 3
PATIENCE_S = 120.0
MARGIN_S = 0.4
"""A cancellation counts if it is acknowledged this long before the record is due."""
SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime", "schedule.target.topic": TARGET}


class Scheduling:
    """The producer, and what must arrive."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self._rng = rng
        self.address = address
        settings = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0, "linger.ms": 1}
        self.producer = Producer({**settings, "reconnect.backoff.max.ms": 100, "message.timeout.ms": 120_000})
        self.sent = 0
        self.acked: set[str] = set()
        self.replaced: set[str] = set()
        """What may arrive or not: it was replaced or cancelled when it was nearly due, or without an answer."""
        self.gone: set[str] = set()
        """What must not arrive."""
        self._open: list[tuple[str, str, float]] = []
        self.failed: list[KafkaError] = []

    def produce(self, count: int) -> None:
        for _ in range(count):
            value = f"v{self.sent}"
            self.sent += 1
            delay_ms = self._rng.choice((0, 100, self._rng.randrange(2500)))
            if self._rng.random() < 0.2:
                key = f"k{self.sent}"
                self._send(value, key, delay_ms + 1500)
                self._open.append((value, key, time.time() + (delay_ms + 1500) / 1000))
            else:
                self._send(value, None if self._rng.random() < 0.5 else f"once{self.sent}", delay_ms)
        if self._open and self._rng.random() < 0.7:
            self._cancel(*self._open.pop(self._rng.randrange(len(self._open))))
        self.producer.poll(0)

    def _send(self, value: str, key: str | None, delay_ms: int) -> None:
        def acked(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acked.add(value)
            else:
                self.failed.append(error)

        headers = [("x-deliver-after", str(delay_ms)), ("n", value)]
        self.producer.produce(SOURCE, value, key, headers=headers, on_delivery=acked)

    def _cancel(self, value: str, key: str, due_s: float) -> None:
        def acked(error: KafkaError | None, _message: Message) -> None:
            if error is None and time.time() + MARGIN_S < due_s:
                self.gone.add(value)

        self.replaced.add(value)
        if self._rng.random() < 0.5:
            self.producer.produce(SOURCE, None, key, on_delivery=acked)
            return
        successor = f"v{self.sent}"
        self.sent += 1

        def acked_successor(error: KafkaError | None, message: Message) -> None:
            acked(error, message)
            if error is None:
                self.acked.add(successor)

        headers = [("x-deliver-after", "700"), ("n", successor)]
        self.producer.produce(SOURCE, successor, key, headers=headers, on_delivery=acked_successor)


def arrived(address: str, least: int) -> list[Message]:
    """Return what is in the target, when it is at least so much and then does not grow for two seconds."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_uncommitted"})
    places = [TopicPartition(TARGET, each, 0) for each in range(PARTITIONS)]
    consumer.assign(places)
    found: list[Message] = []
    deadline, quiet = time.monotonic() + PATIENCE_S, time.monotonic()
    while time.monotonic() < deadline and (len(found) < least or time.monotonic() < quiet + 2):
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
            quiet = time.monotonic()
    consumer.close()
    return found


def records(address: str, topic: str, partitions: int) -> list[Message]:
    """Return what is in a topic, up to its present end."""
    settings = {"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_uncommitted"}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    found: list[Message] = []
    read: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(read) < partitions:
        assert time.monotonic() < deadline, f"{topic} is not read in {PATIENCE_S} s"
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            read.add(message.partition())
    consumer.close()
    return found


def judge(found: list[Message], load: Scheduling) -> Counter[str]:
    """Compare what arrived with what was to arrive; return how often each value did."""
    counts = Counter(each.value().decode() for each in found)
    assert [value for value, count in counts.items() if count > 1] == [], "each fires once"
    assert load.acked - load.replaced - counts.keys() == set(), "nothing is lost"
    assert load.gone & counts.keys() == set(), "what was cancelled in time does not fire"
    for each in found:
        told = dict(each.headers())
        assert int(told["__schedule.at"]) <= each.timestamp()[1], "nothing is early"
        assert told["n"] == each.value()
    return counts

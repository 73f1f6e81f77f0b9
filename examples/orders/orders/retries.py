"""What happens to a message that failed: it is tried again later, and in the end set aside.

No other message waits for it meanwhile: it goes to its own topic, with the time at which it is due. No thread sleeps
either; a partition is paused until its next message is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from orders.clients import Headers, Topics, header, headers_of, place
from orders.model import BadMessage

ATTEMPT, DUE_MS, ERROR, ORIGIN = "attempt", "due-ms", "error", "origin"
_OWN = {ATTEMPT, DUE_MS, ERROR, ORIGIN}
Clock = Callable[[], float]
"""The time in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a message is tried, and how long it waits before the second attempt; the wait doubles each time."""

    attempts: int = 4
    first_wait_s: float = 1.0

    def wait_s(self, failed: int) -> float:
        """Return how long to wait after this number of failures."""
        return float(self.first_wait_s * 2 ** (failed - 1))


class Retries:
    """The topics for messages that failed."""

    def __init__(
        self, producer: Producer, topics: Topics, policy: Policy | None = None, clock: Clock = time.time
    ) -> None:
        self._producer = producer
        self._topics = topics
        self._policy = policy or Policy()
        self._clock = clock

    def take(self, message: Message, error: Exception, timeout: float = 30.0) -> str:
        """Send a message to be tried again, or set it aside.

        Return its new topic. Raises KafkaException if that fails.
        """
        failed = int(header(message, ATTEMPT) or 0) + 1
        again = not isinstance(error, BadMessage) and failed < self._policy.attempts
        topic = self._topics.retries if again else self._topics.dead
        headers = [pair for pair in headers_of(message) if pair[0] not in _OWN]
        headers += self._history(message, error, failed)
        if again:
            due = self._clock() + self._policy.wait_s(failed)
            headers.append((DUE_MS, str(round(due * 1000)).encode()))
        self._write(topic, message, headers, timeout)
        return topic

    def _history(self, message: Message, error: Exception, failed: int) -> Headers:
        topic, partition, offset = place(message)
        origin = header(message, ORIGIN) or f"{topic}-{partition}@{offset}"
        return [
            (ATTEMPT, str(failed).encode()),
            (ERROR, f"{type(error).__name__}: {error}".encode()),
            (ORIGIN, origin.encode()),
        ]

    def _write(self, topic: str, message: Message, headers: Headers, timeout: float) -> None:
        failures: list[KafkaException] = []
        self._producer.produce(
            topic,
            message.value(),
            message.key(),
            headers=[*headers],
            on_delivery=lambda error, _: failures.append(KafkaException(error)) if error else None,
        )
        if self._producer.flush(timeout):
            raise TimeoutError(f"{topic} does not take a message")
        if failures:
            raise failures[0]


class Waiting:
    """Pauses a consumer's partitions until their next message is due."""

    def __init__(self, consumer: Consumer, clock: Clock = time.time) -> None:
        self._consumer = consumer
        self._clock = clock
        self._due: dict[tuple[str, int], float] = {}

    def holds_back(self, message: Message) -> bool:
        """Whether a message is not due yet: its partition is then paused, and later begins with this message."""
        due = float(header(message, DUE_MS) or 0) / 1000
        if due <= self._clock():
            return False
        topic, partition, offset = place(message)
        self._consumer.pause([TopicPartition(topic, partition)])
        self._consumer.seek(TopicPartition(topic, partition, offset))
        self._due[topic, partition] = due
        return True

    def resume(self) -> None:
        """Resume partitions whose next message is due."""
        for (topic, partition), due in list(self._due.items()):
            if due <= self._clock():
                del self._due[topic, partition]
                self._consumer.resume([TopicPartition(topic, partition)])

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that other consumers have now."""
        for each in partitions:
            self._due.pop((each.topic, each.partition), None)

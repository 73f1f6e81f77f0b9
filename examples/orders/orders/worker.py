"""A consumer that handles messages one at a time, each at least once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from orders.clients import error_of, place
from orders.retries import Clock, Retries, Waiting

Handle = Callable[[Message], None]
_REBALANCED = {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001 - librdkafka's name
    KafkaError._NO_OFFSET,  # noqa: SLF001 - likewise
}
"""A commit fails with one of these when another consumer has the partition and will handle the message again."""


class Worker:
    """Passes messages to `handle`. A message whose handling raises goes to `retries`; the next one follows.

    An offset is committed when its message was handled or is safe elsewhere, so that no crash loses a message. After a
    crash, a rebalance or a lost commit, a message may be handled twice.
    """

    def __init__(
        self, consumer: Consumer, topics: Sequence[str], handle: Handle, retries: Retries, clock: Clock = time.time
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._retries = retries
        self._waiting = Waiting(consumer, clock)
        self.assigned: set[tuple[str, int]] = set()
        """The partitions that are assigned to it."""
        consumer.subscribe([*topics], on_assign=self._given, on_revoke=self._taken, on_lost=self._taken)

    def step(self, timeout: float) -> bool:
        """Handle a message, if one arrives in time; return whether a message was handled.

        Raises KafkaException, and commits nothing, if the message could neither be handled nor set aside.
        """
        self._waiting.resume()
        message = self._consumer.poll(timeout)
        if message is None:
            return False
        error = message.error()
        if error is not None:
            if error.fatal():
                raise KafkaException(error)
            return False  # the client retries by itself
        if self._waiting.holds_back(message):
            return False
        try:
            self._handle(message)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the next message is not to wait for it
            self._take_back_unless_safe(message, failure)
        self._commit(message)
        return True

    def run(self, stop: threading.Event) -> None:
        """Handle messages until told to stop, then leave the group."""
        try:
            while not stop.is_set():
                self.step(0.1)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _take_back_unless_safe(self, message: Message, failure: Exception) -> None:
        try:
            self._retries.take(message, failure)
        except Exception:
            self._consumer.seek(TopicPartition(*place(message)))
            raise

    def _commit(self, message: Message) -> None:
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            if error_of(error).code() not in _REBALANCED and not error_of(error).retriable():
                raise

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned |= {(each.topic, each.partition) for each in partitions}

    def _taken(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {(each.topic, each.partition) for each in partitions}
        self._waiting.forget(partitions)

"""Billing: orders in, invoices out, each order once. One transaction covers the invoices and the read offsets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from orders.clients import Topics, error_of, headers_of, place
from orders.model import BadMessage, Invoice, Order
from orders.retries import ERROR

Bill = Callable[[Order], Invoice]


class Fenced(Exception):  # noqa: N818 - what happened
    """Another process has the place of this one, which must end."""


def bill(order: Order) -> Invoice:
    """Return the invoice of an order."""
    return Invoice(order.id, order.customer, order.cents)


class Billing:
    """One of the processes that bill orders; `producer` has the transactional id of its place."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        topics: Topics,
        bill: Bill = bill,
        batch: int = 100,
        timeout: float = 30.0,
    ) -> None:
        """Take the place: its former owner is fenced. Raises KafkaException if that takes longer than `timeout` s."""
        self._consumer = consumer
        self._producer = producer
        self._topics = topics
        self._bill = bill
        self._batch = batch
        self._timeout = timeout
        producer.init_transactions(timeout)
        consumer.subscribe([topics.orders])

    def step(self, timeout: float) -> int:
        """Bill the orders that arrive in time, up to a batch, in one transaction; return the number of messages.

        An error aborts the transaction and is raised, and the messages are delivered again. Raises Fenced. If the
        broker with the group's offsets never returns, librdkafka may never return either (its issue 5511): a service
        that runs for long should watch its progress, and restart the process.
        """
        messages = [each for each in self._consumer.consume(self._batch, timeout) if each.error() is None]
        if not messages:
            return 0
        try:
            self._producer.begin_transaction()
            for message in messages:
                self._write(message)
            self._producer.send_offsets_to_transaction(
                _behind(messages), self._consumer.consumer_group_metadata(), self._timeout
            )
            self._commit()
        except KafkaException as error:
            if error_of(error).fatal():
                raise Fenced(error_of(error).str()) from error
            self._undo(messages)
            raise
        except Exception:
            self._undo(messages)
            raise
        return len(messages)

    def run(self, stop: threading.Event) -> None:
        """Bill until told to stop, or until another process has the place."""
        try:
            while not stop.is_set():
                with contextlib.suppress(KafkaException):  # it is undone, and the messages are delivered again
                    self.step(0.1)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _write(self, message: Message) -> None:
        try:
            invoice = self._bill(Order.from_bytes(message.value()))
        except BadMessage as error:
            headers = [*headers_of(message), (ERROR, str(error).encode())]
            self._producer.produce(self._topics.dead, message.value(), message.key(), headers=[*headers])
            return
        self._producer.produce(self._topics.invoices, invoice.to_bytes(), invoice.order_id)

    def _commit(self) -> None:
        """Commit; repeat retriable errors for as long as the client allows it."""
        while True:
            try:
                self._producer.commit_transaction(self._timeout)
            except KafkaException as error:
                if not error_of(error).retriable():
                    raise
            else:
                return

    def _undo(self, messages: list[Message]) -> None:
        try:
            self._producer.abort_transaction(self._timeout)
        except KafkaException as error:
            if error_of(error).fatal():
                raise Fenced(error_of(error).str()) from error
            raise
        for topic, partition, offset in _begin(messages):
            with contextlib.suppress(KafkaException):  # another process has the partition now, and begins there
                self._consumer.seek(TopicPartition(topic, partition, offset))


def _behind(messages: list[Message]) -> list[TopicPartition]:
    """Return the offsets after these messages."""
    last = {(topic, partition): offset for topic, partition, offset in map(place, messages)}
    return [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in last.items()]


def _begin(messages: list[Message]) -> list[tuple[str, int, int]]:
    """Return the first offset of each partition in these messages."""
    first = {(topic, partition): offset for topic, partition, offset in map(place, reversed(messages))}
    return [(topic, partition, offset) for (topic, partition), offset in first.items()]

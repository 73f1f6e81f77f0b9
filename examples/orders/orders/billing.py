"""Billing: orders in, invoices out, each order once: what is read, what is written and how far it was read are one."""

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
    """Another process has this one's place; it must end."""


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
        """Take the place: who had it before is fenced. Raises KafkaException where that is not done in `timeout` s."""
        self._consumer = consumer
        self._producer = producer
        self._topics = topics
        self._bill = bill
        self._batch = batch
        self._timeout = timeout
        producer.init_transactions(timeout)
        consumer.subscribe([topics.orders])

    def step(self, timeout: float) -> int:
        """Bill what comes in time, up to a batch, in one transaction; return how many messages it were.

        What goes wrong aborts the transaction, is raised, and the messages come again. Raises Fenced.
        Where the broker with the group's offsets is gone for good, librdkafka may never return (its issue 5511): who
        runs this for long watches that it gets on, and starts the process anew.
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
        """Bill until told to stop, or another has the place."""
        try:
            while not stop.is_set():
                with contextlib.suppress(KafkaException):  # undone, and the messages come again
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
        """Commit; what may be tried again is, for as long as the client says so."""
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
            with contextlib.suppress(KafkaException):  # another has the partition by now, and begins where we did
                self._consumer.seek(TopicPartition(topic, partition, offset))


def _behind(messages: list[Message]) -> list[TopicPartition]:
    """Return where to go on after these."""
    last = {(topic, partition): offset for topic, partition, offset in map(place, messages)}
    return [TopicPartition(topic, partition, offset + 1) for (topic, partition), offset in last.items()]


def _begin(messages: list[Message]) -> list[tuple[str, int, int]]:
    """Return where each partition's messages begin."""
    first = {(topic, partition): offset for topic, partition, offset in map(place, reversed(messages))}
    return [(topic, partition, offset) for (topic, partition), offset in first.items()]

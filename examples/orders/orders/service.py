"""The complete service: its parts run in separate threads until the service is stopped."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException

from orders.billing import Billing
from orders.clients import Kafka, Topics
from orders.ledger import Ledger
from orders.outbox import Outbox, Relay
from orders.retries import Policy, Retries
from orders.worker import Worker

_IDLE_S = 0.05


class Service:
    """Orders go from a database to Kafka, there become invoices, and those go to the ledger."""

    def __init__(self, kafka: Kafka, topics: Topics, database: str, policy: Policy | None = None) -> None:
        self._kafka = kafka
        self._topics = topics
        self._database = database
        self._policy = policy
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(each,), name=each.__name__)
            for each in (self._relay, self._bill, self._book)
        ]
        self.failures: list[BaseException] = []
        """The errors that ended a part of the service too early."""

    def __enter__(self) -> Self:
        self._kafka.create(self._topics)
        for each in self._threads:
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for each in self._threads:
            each.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the service is stopped, a part has failed, or `timeout` s have passed; return whether it ends."""
        return self._stop.wait(timeout)

    def stop(self) -> None:
        """Stop the service; the caller of `start` waits for its end."""
        self._stop.set()

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except BaseException as error:  # noqa: BLE001 - whoever runs the service looks at it
            self.failures.append(error)
            self._stop.set()

    def _relay(self) -> None:
        with contextlib.closing(_connect(self._database)) as database:
            relay = Relay(Outbox(database), self._kafka.producer(), self._topics.orders)
            while not self._stop.wait(_IDLE_S):
                while relay.step():
                    pass

    def _bill(self) -> None:
        consumer = self._kafka.consumer(f"{self._topics.orders}.billing")
        producer = self._kafka.producer(**{"transactional.id": f"{self._topics.orders}.billing-0"})
        Billing(consumer, producer, self._topics).run(self._stop)

    def _book(self) -> None:
        with contextlib.closing(_connect(self._database)) as database:
            retries = Retries(self._kafka.producer(), self._topics, self._policy)
            consumer = self._kafka.consumer(f"{self._topics.invoices}.ledger")
            worker = Worker(consumer, [self._topics.invoices, self._topics.retries], Ledger(database).handle, retries)
            try:
                while not self._stop.is_set():
                    try:
                        worker.step(0.1)
                    except KafkaException:  # nothing is lost: the message is delivered again
                        self._stop.wait(_IDLE_S)
            finally:
                worker.close()


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=30)

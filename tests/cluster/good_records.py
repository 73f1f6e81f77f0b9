"""Valid records are sent all the time to a topic that checks them, while brokers end: none may be refused.

Owns the threads, and the answers about the records. Never ends a broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from confluent_kafka import KafkaError, Producer

from tests.record_checks.conftest import order

PATIENCE_S: Final = 60.0


class Sending:
    """A thread that registers schemas, and one that sends a record with the newest schema, then one with any schema.

    `register` registers the schema with a number, and returns its id; it raises if a broker has ended.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: Sequence[int], register: Callable[[int], int]) -> None:
        self.refused: list[KafkaError] = []
        """The errors of lost records; a client has retried before."""
        self.sent = self.acknowledged = 0
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._register_one = register
        self._ids = [register(0)]
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._register, self._produce)]

    def _register(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            try:
                self._ids.append(self._register_one(number))
            except (OSError, AssertionError, RuntimeError):  # raises if a broker ends
                time.sleep(0.02)

    def _produce(self) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "linger.ms": 1, "retry.backoff.ms": 50}
        producer = Producer({**settings, "reconnect.backoff.max.ms": 500, "log_level": 0})

        def told(error: KafkaError | None, _message: Any) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.refused.append(error)

        while not self._ends.is_set():
            number = self._ids[-1] if self.sent % 2 else self._ids[self.sent % len(self._ids)]
            partition = self._partitions[self.sent % len(self._partitions)]
            producer.produce(self._topic, order(number), partition=partition, on_delivery=told)
            self.sent += 1
            producer.poll(0.005)
        producer.flush(PATIENCE_S)

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for each in self._threads:
            each.join()

    def until_more(self, records: int, schemas: int) -> None:
        """Wait for this number of additional records and schemas, or for a lost record."""
        wanted = self.acknowledged + records, len(self._ids) + schemas
        end = time.monotonic() + PATIENCE_S
        while (self.acknowledged < wanted[0] or len(self._ids) < wanted[1]) and not self.refused:
            assert time.monotonic() < end, (self.acknowledged, len(self._ids), wanted)
            time.sleep(0.02)

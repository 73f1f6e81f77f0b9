"""The measured producers: confluent-kafka's (librdkafka) if installed, or kafka-python's.

Owns the functions of these clients that a measurement needs. Owns the definition of a record's time: it begins with the
call that sends the record, and ends with the acknowledgement. That call waits while the client's buffer is full.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import click
from kafka import __version__ as kafka_python_version

from kbroker.admin.connection import Connection
from kbroker.cli.librdkafka import settings_of
from kbroker.cli.perf.live import Stop
from kbroker.extras import how_to_install

CLIENTS: Final = ("auto", "confluent-kafka", "kafka-python")
_LINGER_MS: Final = 5
_PATIENCE_S: Final = 30.0
_GRACE_S: Final = 2.0
_SLICE_S: Final = 0.1
"""The maximum time in seconds between checks for a stop."""
Acknowledged = Callable[[float | None, str | None], None]
"""Receives a record's result: the seconds that it took, or its error."""


class Sender(Protocol):
    """A producer."""

    client: str
    """The client's name and version."""

    def send(self, value: bytes, acknowledged: Acknowledged) -> None:
        """Send a record; wait until the client has room for it, or until the measurement is stopped."""

    def serve(self, seconds: float) -> None:
        """Process reports about records, for at most this many seconds."""

    def flush(self) -> None:
        """Wait until every record is finished; after a stop, wait only a short time."""

    def begin(self) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def close(self) -> None:
        """Close the producer, and release all its resources."""


class _Grace:
    """The time limit, in seconds, for records in flight after a measurement is stopped."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop
        self._end: float | None = None

    @property
    def is_over(self) -> bool:
        if self._stop and self._end is None:
            self._end = time.perf_counter() + _GRACE_S
        return self._end is not None and time.perf_counter() > self._end


class Confluent:
    """confluent-kafka's producer; librdkafka itself measures the time from queueing to the acknowledgement."""

    def __init__(self, topic: str, partition: int | None, settings: dict[str, Any], stop: Stop) -> None:
        import confluent_kafka

        self.client = f"confluent-kafka {confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"
        self._topic = topic
        self._stop = stop
        self._where = {} if partition is None else {"partition": partition}
        self._producer = confluent_kafka.Producer(settings)
        if "transactional.id" in settings:
            self._producer.init_transactions(_PATIENCE_S)

    def send(self, value: bytes, acknowledged: Acknowledged) -> None:
        began = time.perf_counter()
        waited = 0.0

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                acknowledged(None, f"{error.str()} ({error.name()})")
            else:
                acknowledged(waited + float(message.latency() or 0.0), None)

        while not self._stop:
            try:
                waited = time.perf_counter() - began
                self._producer.produce(self._topic, value, on_delivery=on_delivery, **self._where)
            except BufferError:
                self._producer.poll(_SLICE_S)
            else:
                self._producer.poll(0)
                return

    def serve(self, seconds: float) -> None:
        self._producer.poll(min(seconds, _SLICE_S))

    def flush(self) -> None:
        grace = _Grace(self._stop)
        while self._producer.flush(_SLICE_S) and not grace.is_over:
            pass

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(_PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(1)


class KafkaPython:
    """kafka-python's producer, whose own thread reports acknowledgements."""

    def __init__(
        self, connection: Connection, topic: str, partition: int | None, own: dict[str, Any], stop: Stop
    ) -> None:
        self.client = f"kafka-python {kafka_python_version}"
        self._topic, self._partition = topic, partition
        self._stop = stop
        self._pending = 0
        self._changed = threading.Condition()
        self._producer = connection.producer(**own)
        if own.get("transactional_id"):
            self._producer.init_transactions()

    def send(self, value: bytes, acknowledged: Acknowledged) -> None:
        began = time.perf_counter()
        future = self._producer.send(self._topic, value, partition=self._partition)
        with self._changed:
            self._pending += 1
        future.add_callback(lambda _metadata: self._report(acknowledged, time.perf_counter() - began, None))
        future.add_errback(lambda error: self._report(acknowledged, None, str(error)))

    def _report(self, acknowledged: Acknowledged, seconds: float | None, error: str | None) -> None:
        acknowledged(seconds, error)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def serve(self, seconds: float) -> None:
        time.sleep(min(seconds, _SLICE_S))

    def flush(self) -> None:
        """Wait for pending records; the client's own flush fails after it has split a batch."""
        with self._changed:
            grace = _Grace(self._stop)
            while self._pending and not grace.is_over:
                self._changed.wait(_SLICE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


def open_sender(
    connection: Connection,
    client: str,
    topic: str,
    stop: Stop,
    *,
    acks: int,
    compression: str,
    partition: int | None = None,
    linger_ms: int = _LINGER_MS,
    transactional_id: str | None = None,
) -> Sender:
    """Return the chosen client's producer; "auto" is confluent-kafka if installed."""
    own = {
        "acks": acks,
        "enable_idempotence": acks == -1,
        "linger_ms": linger_ms,
        **({} if compression == "none" else {"compression_type": compression}),
        **({} if transactional_id is None else {"transactional_id": transactional_id}),
    }
    if chosen(client) == "confluent-kafka":
        return Confluent(topic, partition, settings_of(connection, own, {}, OTHERWISE), stop)
    return KafkaPython(connection, topic, partition, own, stop)


OTHERWISE: Final = "; --client kafka-python takes it"
"""The end of the message about a refused setting that only kafka-python has."""


def chosen(client: str) -> str:
    """Return the client to measure. Raises UsageError if it is not installed."""
    if client == "kafka-python":
        return client
    try:
        import confluent_kafka  # noqa: F401 - only checks that it is installed
    except ImportError:
        if client == "confluent-kafka":
            raise click.UsageError(f"confluent-kafka is not installed: {how_to_install('perf')}") from None
        return "kafka-python"
    return "confluent-kafka"

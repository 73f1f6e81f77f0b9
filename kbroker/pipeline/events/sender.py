"""Sends records with their own timestamps to a topic, with one idempotent producer of librdkafka.

Owns the producer, the pace, and the texts of its errors. Never keeps more records than the producer's queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.events.generator import Arrival
from kbroker.pipeline.kafka.client_settings import librdkafka_settings
from kbroker.pipeline.kafka.cluster import Clients

_DELIVERY_S: Final = 60
_QUEUED: Final = 50_000
_LONGEST_WAIT_S: Final = 0.1  # short, so that the loop notices a stop
_POLL_EVERY: Final = 256
_GIVING_UP_S: Final = 5


class Sender:
    """Sends records to a topic. Raises PipelineError if the producer cannot be created."""

    def __init__(self, clients: Clients, topic: str) -> None:
        try:
            from confluent_kafka import KafkaException, Producer
        except ImportError:
            raise PipelineError(
                "events are sent with confluent-kafka: install kbroker with its extra `spark`"
            ) from None
        self.sent = 0
        self._topic = topic
        self._failure: Any = None
        self._refused = KafkaException
        own = {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "delivery.timeout.ms": _DELIVERY_S * 1000,
            "queue.buffering.max.messages": _QUEUED,
            "delivery.report.only.error": True,
            "on_delivery": self._undelivered,
            "log_level": 0,
        }
        try:
            self._producer = Producer({**own, **librdkafka_settings(clients.bootstrap, clients.settings)})
        except KafkaException as err:
            raise PipelineError(f"bad client setting: {err.args[0].str()}") from err

    def send_all(
        self,
        records: Iterable[Arrival],
        stopped: Callable[[], bool],
        *,
        clock_ms: Callable[[], float] | None = None,
        until_ms: float | None = None,
        on_sent: Callable[[Arrival], None] | None = None,
    ) -> None:
        """Send records in order, with their timestamps, up to the end, `stopped`, or a record at `until_ms`.

        With a clock, no record is sent before its time. `on_sent` is called with each record that was passed to the
        producer. Returns when the brokers have acknowledged all sent records. Raises PipelineError if a record was not
        delivered.
        """
        for record in records:
            if until_ms is not None and record[0] >= until_ms:
                if clock_ms is not None:
                    self._wait(until_ms, clock_ms, stopped)
                break
            if clock_ms is not None:
                self._wait(record[0], clock_ms, stopped)
            if stopped():
                break
            self._send(record)
            if on_sent is not None:
                on_sent(record)
        self._finish()

    def _send(self, record: Arrival) -> None:
        stamp, key, value = record
        while self._failure is None:
            try:
                self._producer.produce(self._topic, value, key, timestamp=stamp)
            except BufferError:
                self._producer.poll(_LONGEST_WAIT_S)
                continue
            except self._refused as err:
                self._failure = err.args[0]
                break
            self.sent += 1
            if self.sent % _POLL_EVERY == 0:
                self._producer.poll(0)
            break
        if self._failure is not None:
            self._give_up()

    def _wait(self, due_ms: float, clock_ms: Callable[[], float], stopped: Callable[[], bool]) -> None:
        """Wait until a time, and handle the producer's reports meanwhile."""
        while (left := due_ms - clock_ms()) > 0 and self._failure is None and not stopped():
            self._producer.poll(min(left / 1000, _LONGEST_WAIT_S))
        if self._failure is not None:
            self._give_up()

    def _finish(self) -> None:
        deadline = time.monotonic() + _DELIVERY_S + _GIVING_UP_S
        while self._producer.flush(1) and self._failure is None and time.monotonic() < deadline:
            pass
        if self._failure is not None:
            self._give_up()
        if len(self._producer):
            raise PipelineError(f"{len(self._producer)} records were not delivered to {self._topic}: no answer came")

    def _give_up(self) -> None:
        """Clear the queue, and raise the first failure."""
        failure = self._failure
        self._producer.purge()
        self._producer.flush(_GIVING_UP_S)
        reason, name = failure.str(), failure.name()
        if name == "MSG_SIZE_TOO_LARGE":
            reason = "a record, or a batch of records, is larger than the topic takes (max.message.bytes)"
        elif name in ("INVALID_RECORD", "INVALID_TIMESTAMP"):
            reason = "the broker refused a record, perhaps since its timestamp is too far from now"
        elif name == "_MSG_TIMED_OUT":
            reason = f"no broker took them for {_DELIVERY_S} s"
        raise PipelineError(f"not all records were delivered to {self._topic}: {reason} ({name.lstrip('_')})")

    def _undelivered(self, error: Any, _record: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error

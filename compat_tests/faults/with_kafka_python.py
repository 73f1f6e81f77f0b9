"""kafka-python, as the tests of faults use it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from compat_tests.faults.client import BACKOFF_MS, DELIVERY_MS, READ_MS, REQUEST_MS, SESSION_MS

_COMMON: dict[str, Any] = {
    "retry_backoff_ms": BACKOFF_MS,
    "reconnect_backoff_ms": BACKOFF_MS,
    "reconnect_backoff_max_ms": 2 * BACKOFF_MS,
    "metadata_max_age_ms": 500,
}


class WithKafkaPython:
    name = "kafka-python"

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        producer = None
        try:
            producer = KafkaProducer(
                bootstrap_servers=bootstrap,
                enable_idempotence=idempotent,
                acks="all",
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=DELIVERY_MS,
                max_block_ms=DELIVERY_MS,
                **_COMMON,
            )
            for number in range(count):
                producer.send(topic, str(number).encode(), partition=0).get(READ_MS / 1000 + 4)
        except KafkaError as error:
            return type(error).__name__
        finally:
            if producer is not None:
                _end(producer)
        return "delivered"

    def consume(self, bootstrap: str, topic: str) -> str:
        consumer = None
        try:
            consumer = self._consumer(bootstrap, None)
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek(TopicPartition(topic, 0), 0)
            return _read(consumer)
        except KafkaError as error:
            return type(error).__name__
        finally:
            if consumer is not None:
                consumer.close(autocommit=False)

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        consumer = None
        try:
            consumer = self._consumer(bootstrap, group, session_ms)
            consumer.subscribe([topic])
            consumer.partitions_for_topic(topic)  # see clients/kafka_python/tools.py
            found = _read(consumer)
            if found == "read":
                time.sleep(pause_ms / 1000)
                consumer.commit()
                return "committed"
            return found
        except KafkaError as error:
            return type(error).__name__
        finally:
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=500)

    def _consumer(self, bootstrap: str, group: str | None, session_ms: int = SESSION_MS) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            request_timeout_ms=REQUEST_MS if group is None else 7_000,
            fetch_max_wait_ms=200,
            heartbeat_interval_ms=200,
            session_timeout_ms=session_ms,
            **_COMMON,
        )

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        producer = None
        try:
            producer = KafkaProducer(
                bootstrap_servers=bootstrap,
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=REQUEST_MS,
                delivery_timeout_ms=DELIVERY_MS,
                max_block_ms=READ_MS,
                **_COMMON,
            )
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"0", partition=0)
            if pause_ms:
                producer.flush(READ_MS / 1000)
                time.sleep(pause_ms / 1000)
            producer.commit_transaction()
        except KafkaError as error:
            return type(error).__name__
        finally:
            if producer is not None:
                _end(producer)
        return "committed"


def _end(producer: KafkaProducer) -> None:
    """Close a producer that may have records which no broker accepts: its own close then raises, and closes nothing."""
    with suppress(KafkaError):
        producer.close(timeout=0.1)
        return
    producer._sender.force_close()
    producer._sender.join(1)
    producer._closed = True


def _read(consumer: KafkaConsumer) -> str:
    deadline = time.monotonic() + READ_MS / 1000
    while time.monotonic() < deadline:
        if consumer.poll(timeout_ms=100):
            return "read"
    return "nothing"

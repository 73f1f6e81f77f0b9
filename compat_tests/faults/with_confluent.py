"""confluent-kafka, and so librdkafka, as the tests of faults use it."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from compat_tests.faults.client import BACKOFF_MS, DELIVERY_MS, READ_MS, REQUEST_MS, SESSION_MS

_COMMON: dict[str, Any] = {
    "log_level": 0,
    "socket.timeout.ms": REQUEST_MS,
    "reconnect.backoff.ms": BACKOFF_MS,
    "reconnect.backoff.max.ms": 2 * BACKOFF_MS,
    "retry.backoff.ms": BACKOFF_MS,
    "topic.metadata.refresh.interval.ms": 500,
}


# FindCoordinator uses the connection of a Fetch and is answered after it. If that takes longer than a retry's backoff,
# librdkafka treats each answer as a change, closes the connection to the coordinator that it has just opened, and
# begins anew, for seconds. In about one of 200 runs that takes longer than a session.
FETCH_WAIT_MS: Final = BACKOFF_MS // 2


def _name(error: KafkaError) -> str:
    kind = " (fatal)" if error.fatal() else " (abort)" if error.txn_requires_abort() else ""
    return f"{error.name()}{kind}"


class WithConfluent:
    name = "confluent-kafka"

    def produce(self, bootstrap: str, topic: str, count: int, *, idempotent: bool) -> str:
        told: list[str] = []
        producer = Producer(
            _COMMON
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": idempotent,
                "message.timeout.ms": DELIVERY_MS,
                "request.timeout.ms": REQUEST_MS,
                "linger.ms": 0,
            }
        )
        for number in range(count):
            producer.produce(
                topic,
                str(number),
                partition=0,
                on_delivery=lambda error, _: told.append("delivered" if error is None else _name(error)),
            )
            producer.flush(READ_MS / 1000 + 4)
        producer.purge()
        wrong = [each for each in told if each != "delivered"]
        return wrong[0] if wrong else "delivered" if len(told) == count else "nothing"

    def consume(self, bootstrap: str, topic: str) -> str:
        consumer = self._consumer(bootstrap, "nobody")
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            return _read(consumer)
        finally:
            consumer.close()

    def consume_in_group(
        self, bootstrap: str, topic: str, group: str, pause_ms: int = 0, session_ms: int = SESSION_MS
    ) -> str:
        consumer = self._consumer(bootstrap, group, session_ms)
        consumer.subscribe([topic])
        try:
            found = _read(consumer)
            if found == "read":
                time.sleep(pause_ms / 1000)
                consumer.commit(asynchronous=False)
                return "committed"
            return found
        except KafkaException as error:
            return _name(error.args[0])
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str, group: str, session_ms: int = SESSION_MS) -> Consumer:
        return Consumer(
            _COMMON
            | {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.error.backoff.ms": BACKOFF_MS,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": session_ms,
            }
        )

    def transact(self, bootstrap: str, topic: str, name: str, pause_ms: int = 0, timeout_ms: int = DELIVERY_MS) -> str:
        producer = Producer(
            _COMMON
            | {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        try:
            producer.init_transactions(READ_MS / 1000)
            producer.begin_transaction()
            producer.produce(topic, "0", partition=0)
            if pause_ms:
                producer.flush(READ_MS / 1000)
                time.sleep(pause_ms / 1000)
            producer.commit_transaction(READ_MS / 1000)
        except KafkaException as error:
            return _name(error.args[0])
        return "committed"


def _read(consumer: Consumer) -> str:
    deadline, last = time.monotonic() + READ_MS / 1000, "nothing"
    while time.monotonic() < deadline:
        found = consumer.poll(0.1)
        if found is None:
            continue
        error = found.error()
        if error is None:
            return "read"
        last = _name(error)
    return last

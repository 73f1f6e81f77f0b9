"""A writer for records that keep their timestamps, because Spark's sink cannot write timestamps.

Owns the work of a Spark task on its rows: one idempotent producer of librdkafka sends them in order and waits for all
acknowledgements. (kafka-python refuses records that Kafka accepts: without key and value, or with a null header.) The
task runs in the executors' Python, which needs confluent-kafka and gets the code from the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kbroker.pipeline.kafka.client_settings import librdkafka_settings
from kbroker.pipeline.kafka.cluster import Clients
from kbroker.pipeline.spark.tasks import DONE_AGAIN

_WAIT_S: Final = 600
_QUEUED: Final = 20_000  # the maximum number of records in the producer's queue


def write_with_timestamps(frame: Any, clients: Clients, topic: str, *, once: bool) -> None:
    """Send a DataFrame's rows (key, value, headers, partition, timestamp), task by task. Raises Spark's errors.

    With `once`, a task that Spark repeats (spark/tasks.py) fails without sending anything.
    """
    from pyspark.cloudpickle import register_pickle_by_value
    from pyspark.sql import functions as f

    register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    settings = librdkafka_settings(clients.bootstrap, clients.settings)
    rows = frame.select("key", "value", "headers", "partition", f.unix_millis("timestamp").alias("stamp"))
    rows.foreachPartition(lambda found: _send_rows(found, settings, topic, once))


def _send_rows(rows: Iterator[Any], settings: Mapping[str, Any], topic: str, once: bool) -> None:
    from confluent_kafka import KafkaException, Producer
    from pyspark import TaskContext

    context = TaskContext.get()
    if once and context is not None and context.attemptNumber() > 0:
        raise RuntimeError(DONE_AGAIN)
    own = {
        "enable.idempotence": True,
        "linger.ms": 5,
        "delivery.timeout.ms": _WAIT_S * 1000,
        "queue.buffering.max.messages": _QUEUED,
        "log_level": 0,
    }
    producer = Producer({**own, **settings})
    failures: list[Any] = []

    def delivered(error: Any, _record: Any) -> None:
        if error is not None:
            failures.append(error)

    for row in rows:
        headers = [(header["key"], _bytes(header["value"])) for header in row["headers"] or ()]
        place = {"partition": row["partition"], "timestamp": row["stamp"], "on_delivery": delivered}
        record = {"key": _bytes(row["key"]), "value": _bytes(row["value"]), "headers": headers, **place}
        while not failures:
            try:
                producer.produce(topic, **record)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        if failures:
            break
    left = producer.flush(_WAIT_S)
    if failures or left:
        raise KafkaException(failures[0]) if failures else TimeoutError(f"{left} records were not delivered")


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)

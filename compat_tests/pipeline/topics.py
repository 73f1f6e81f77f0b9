"""Topics that the pipeline's scenarios fill, read, delete and create anew.

Owns the form of the records, and reading them back.
"""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbroker.pipeline.replay.replay import HEADER

DAY_MS = 86_400_000
BASE_MS = 1_795_564_800_000  # 2026-11-25 00:00 UTC, as when Apache Kafka's side was recorded
WAIT_S = 60


def create(bootstrap: str, *topics: str, partitions: int = 2, configs: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    kept = {"retention.ms": "-1", **(configs or {})}  # BASE_MS lies further in the past every day
    asked = [NewTopic(topic, num_partitions=partitions, config=kept) for topic in topics]
    for future in admin.create_topics(asked).values():
        future.result(30)


def put(bootstrap: str, topic: str, first: int, count: int, partitions: int = 2, *, keyed: bool = False) -> None:
    """Produce records of every form round robin, 20 s apart: without key, value or headers; null and empty ones."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for i in range(first, first + count):
        producer.produce(
            topic,
            value=None if i % 7 == 0 else b"" if i % 7 == 1 else f"value-{i}",
            key=f"key-{i}" if keyed else None if i % 3 == 0 else b"" if i % 3 == 1 else f"key-{i}",
            partition=i % partitions,
            timestamp=BASE_MS + i * 20_000,
            headers=[("n", str(i).encode()), ("n", None), ("", b"")] if i % 2 else [],
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert failures == []


def put_transaction(bootstrap: str, topic: str, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{commit}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce(topic, value=f"in a transaction, {commit}", partition=partition, timestamp=BASE_MS + DAY_MS)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def records(bootstrap: str, topic: str, partitions: int = 2, *, timestamps: bool = True) -> list[list[Any]]:
    """Return a topic's records partition by partition, in order, without the header that a replay adds."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[list[Any]] = [[] for _ in range(partitions)]
    ended = 0
    deadline = time.monotonic() + WAIT_S
    while ended < partitions:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended += 1
            continue
        headers = [list(header) for header in message.headers() or () if header[0] != HEADER]
        stamp = message.timestamp()[1] - BASE_MS if timestamps else None
        found[message.partition()].append([text(message.key()), text(message.value()), stamp, str(headers)])
    consumer.close()
    return found


def text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()


def values(bootstrap: str, topic: str, partitions: int) -> list[list[tuple[str | None, str | None]]]:
    """Return (key, value) of a topic's records."""
    return [[(key, value) for key, value, *_ in part] for part in records(bootstrap, topic, partitions)]


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def delete_records(bootstrap: str, topic: str, partition: int, before: int) -> None:
    """Delete a partition's records before an offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


def create_anew(bootstrap: str, topic: str) -> None:
    """Create a topic again that is still being deleted."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            create(bootstrap, topic)
        except KafkaException as err:
            if err.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return

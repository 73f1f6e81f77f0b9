"""Short forms for kafka-python: clients that close, topics that exist, records as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from compat_tests.clients.common import T0, wait_for


@contextmanager
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    """Yield an admin client."""
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def producer(bootstrap: str, **config: Any) -> Iterator[KafkaProducer]:
    """Yield a producer; it is flushed at the end."""
    client = KafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        yield client
        client.flush(timeout=30)
    finally:
        client.close(timeout=10)


@contextmanager
def consumer(bootstrap: str, *topics: str, **config: Any) -> Iterator[KafkaConsumer]:
    """Yield a consumer that starts at the beginning and does not commit by itself."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    client = KafkaConsumer(*topics, bootstrap_servers=bootstrap, **settings)
    know(client, *topics)
    try:
        yield client
    finally:
        client.close(autocommit=False)


def know(client: KafkaConsumer, *topics: str) -> None:
    """Fetch the metadata of topics that the client has subscribed to, before its first `poll` joins a group.

    This client joins before it has the metadata, and then assigns nothing. It must also receive the metadata after it
    has subscribed, because it checks for changes only when metadata arrive. If a leader later finds that its first
    assignment was made without the metadata, it rejoins. If one `poll` ends meanwhile, the client forgets that it is
    rejoining: it sends no more heartbeats and never returns to the group (kafka-python 3.0.12: need_rejoin() is over as
    soon as _perform_assignment has run, and nobody awaits the join that is in progress).
    """
    for topic in topics:
        client.partitions_for_topic(topic)


def create(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    """Create a topic, wait for its leaders and return its name; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with admin(bootstrap) as client:
        client.create_topics(
            {name: {"num_partitions": partitions, "replication_factor": 1, "configs": settings}}, wait_for_metadata=True
        )
    return name


def fill(bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **config: Any) -> None:
    """Append values to a partition, with increasing keys k0, k1, ... and times from T0 on."""
    with producer(bootstrap, **config) as client:
        for number, value in enumerate(values):
            client.send(topic, value, key=f"k{number}".encode(), partition=partition, timestamp_ms=T0 + number)


def take(client: KafkaConsumer, count: int, timeout: float = 30) -> list[ConsumerRecord]:
    """Poll until `count` records have arrived; return them ordered by partition and offset."""
    taken: list[ConsumerRecord] = []

    def enough() -> bool:
        for records in client.poll(timeout_ms=200).values():
            taken.extend(records)
        return len(taken) >= count

    wait_for(f"{count} records", enough, timeout)
    return sorted(taken, key=lambda record: (record.topic, record.partition, record.offset))


def read(bootstrap: str, topic: str, count: int, partitions: int = 1, **config: Any) -> list[ConsumerRecord]:
    """Read `count` records of a topic from its beginning."""
    with consumer(bootstrap, **config) as client:
        client.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        return take(client, count)


def plain(record: ConsumerRecord, *, timestamp: bool = True) -> dict[str, Any]:
    """Return a record as plain values."""
    found = {
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "key": record.key,
        "value": record.value,
        "headers": [list(header) for header in record.headers],
        "timestamp_type": record.timestamp_type,
    }
    if timestamp:
        found["timestamp"] = record.timestamp
    return found

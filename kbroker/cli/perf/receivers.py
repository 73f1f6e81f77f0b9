"""The measured consumers: confluent-kafka's if installed, or kafka-python's.

Owns the functions of these clients that a measurement needs. Joins a group without committing, so that no group
remains.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

import click
from kafka import __version__ as kafka_python_version
from kafka.structs import TopicPartition

from kbroker.admin.connection import Connection
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.cli.librdkafka import settings_of
from kbroker.cli.perf.senders import OTHERWISE, chosen

_MOST: Final = 500
_SOCKET_BYTES: Final = 2 * 1024 * 1024
_PATIENCE_S: Final = 10.0


class Receiver(Protocol):
    """A consumer."""

    client: str
    """The client's name and version."""
    assigned_at: float | None
    """The time at which the group first assigned partitions, on the clock time.perf_counter; None before that."""

    def take(self, most: int, seconds: float) -> list[bytes | None]:
        """Return the values of at most `most` records; wait for records for at most `seconds`."""

    def taken_octets(self) -> int:
        """Return the number of bytes of keys and values that were received so far."""

    def close(self) -> None:
        """Leave the group."""


class Confluent:
    """confluent-kafka's consumer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import confluent_kafka

        self.client = f"confluent-kafka {confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"
        self.assigned_at: float | None = None
        self._octets = 0
        self._consumer = confluent_kafka.Consumer(settings)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read topics as a member of the group; a name that begins with ^ is a regular expression."""
        self._consumer.subscribe(list(topics), on_assign=self._note)

    def read_from_end(self, topic: str, partitions: Sequence[int]) -> None:
        """Read partitions from their current ends."""
        import confluent_kafka

        places = [confluent_kafka.TopicPartition(topic, each) for each in partitions]
        for each in places:
            each.offset = self._consumer.get_watermark_offsets(each, timeout=_PATIENCE_S)[1]
        self._consumer.assign(places)
        self.assigned_at = time.perf_counter()

    def _note(self, _consumer: Any, partitions: Sequence[Any]) -> None:
        if partitions and self.assigned_at is None:
            self.assigned_at = time.perf_counter()

    def take(self, most: int, seconds: float) -> list[bytes | None]:
        values: list[bytes | None] = []
        for message in self._consumer.consume(min(most, _MOST), seconds):
            if message.error() is not None:
                raise click.ClickException(f"{message.error().str()} ({message.error().name()})")
            value = message.value()
            self._octets += len(message.key() or b"") + len(value or b"")
            values.append(value)
        return values

    def taken_octets(self) -> int:
        return self._octets

    def close(self) -> None:
        self._consumer.close()


class KafkaPython:
    """kafka-python's consumer."""

    def __init__(self, connection: Connection, own: dict[str, Any]) -> None:
        self.client = f"kafka-python {kafka_python_version}"
        self.assigned_at: float | None = None
        self._octets = 0
        self._consumer = connection.consumer(**own)

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read topics as a member of the group; a name that begins with ^ is a regular expression."""
        # If a member joins before it knows the partitions, it assigns no partitions. It does not always notice the
        # partitions later.
        if topics[0].startswith("^"):
            self._consumer.topics()
            self._consumer.subscribe(pattern=topics[0])
        else:
            for each in topics:
                self._consumer.partitions_for_topic(each)
            self._consumer.subscribe(list(topics))

    def read_from_end(self, topic: str, partitions: Sequence[int]) -> None:
        """Read partitions from their current ends."""
        places = [TopicPartition(topic, each) for each in partitions]
        self._consumer.assign(places)
        for each, offset in self._consumer.end_offsets(places).items():
            self._consumer.seek(each, offset)
        self.assigned_at = time.perf_counter()

    def take(self, most: int, seconds: float) -> list[bytes | None]:
        values: list[bytes | None] = []
        for records in self._consumer.poll(max(int(seconds * 1000), 1), max_records=min(most, _MOST)).values():
            for record in records:
                self._octets += len(record.key or b"") + len(record.value or b"")
                values.append(record.value)
        if self.assigned_at is None and self._consumer.assignment():
            self.assigned_at = time.perf_counter()
        return values

    def taken_octets(self) -> int:
        return self._octets

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def open_receiver(
    connection: Connection, client: str, *, group: str | None, from_latest: bool, fetch_size: int, hasty: bool = False
) -> Confluent | KafkaPython:
    """Return the chosen client's consumer; if `hasty`, it fetches again immediately after an empty answer."""
    own = {
        "auto_offset_reset": "latest" if from_latest else "earliest",
        "max_partition_fetch_bytes": fetch_size,
        "receive_buffer_bytes": _SOCKET_BYTES,
    }
    if chosen(client) == "confluent-kafka":
        own["group_id"] = group or "kbroker-perf-without-group"  # librdkafka requires a group id even without a group
        haste = {"fetch.error.backoff.ms": 0, "fetch.queue.backoff.ms": 0} if hasty else {}
        return Confluent(settings_of(connection, own, {"enable.auto.commit": False, **haste}, OTHERWISE))
    return KafkaPython(connection, {**own, "group_id": group, "enable_auto_commit": False})


def partitions_of(connection: Connection, topic: str) -> list[int]:
    """Return the partitions of a topic. Raises ClickException if the topic does not exist."""
    with connection.admin() as admin:
        found = [each for each in admin.describe_topics([topic]) if not each["error_code"]]
        if not found:
            raise click.ClickException(no_such_topic(admin, topic))
    return sorted(int(each["partition_index"]) for each in found[0]["partitions"])

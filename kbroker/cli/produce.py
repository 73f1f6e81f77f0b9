"""`kbroker produce`: write the lines of standard input to a topic."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import click
from kafka.admin import ConfigResource
from kafka.errors import (
    BrokerResponseError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)
from kafka.serializer import Serializer

from kbroker.admin.codes import error_text
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.cli.client import client_options, ending_at_signals
from kbroker.cli.outage import SILENCE_S, told_of_outages
from kbroker.cli.record_format import unescape

# Enough to fill many requests, little enough to keep a piped file of any size out of memory.
_MOST_BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024
_RECORD_OVERHEAD: Final = 64
_GRACE_S: Final = 10.0
ACKS: Final = {"0": 0, "1": 1, "all": -1, "-1": -1}
_LIMITS: Final = {MessageSizeTooLargeError: "max.message.bytes", RecordListTooLargeError: "segment.bytes"}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _Message(NamedTuple):
    key: bytes | None
    value: bytes

    @property
    def size(self) -> int:
        return _RECORD_OVERHEAD + len(self.key or b"") + len(self.value)


class _Tombstones(Serializer):  # type: ignore[misc]
    """Turns empty values into null. The client takes no null value without a key, but serializers may return one."""

    def serialize(self, topic: str, headers: object, data: bytes) -> bytes | None:  # noqa: ARG002
        return data or None


class _Deliveries:
    """What became of the records sent. The client's thread reports, the command's thread waits."""

    def __init__(self) -> None:
        self.written = 0
        self.failed = 0
        self.error: BaseException | None = None
        self._pending = 0
        self._bytes = 0
        self._heard = time.monotonic()
        self._changed = threading.Condition()

    def expect(self, size: int) -> None:
        """Wait until `size` more bytes may be on their way."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < _MOST_BYTES_IN_FLIGHT)
            if not self._pending:
                self._heard = time.monotonic()
            self._bytes += size
            self._pending += 1

    def stall(self) -> bool:
        """Whether records are on their way of which nothing was heard for a while."""
        return self._pending > 0 and time.monotonic() - self._heard > SILENCE_S

    def succeed(self, size: int, _metadata: object) -> None:
        """Count a record that was acknowledged."""
        with self._changed:
            self.written += 1
            self._forget(size)

    def fail(self, size: int, error: BaseException) -> None:
        """Count a record that is lost; the first error is remembered."""
        with self._changed:
            self.failed += 1
            # One bad record fails its batch; what the others hear says nothing of the cause.
            if self.error is None or (_of_another(self.error) and not _of_another(error)):
                self.error = error
            self._forget(size)

    def _forget(self, size: int) -> None:
        self._pending -= 1
        self._bytes -= size
        self._heard = time.monotonic()
        self._changed.notify_all()

    def wait(self, patience_s: float) -> None:
        """Wait until something is known of every record; give up when for so long nothing is heard of any."""
        with self._changed:
            while self._pending:
                if not self._changed.wait(patience_s):
                    self.failed += self._pending
                    self.error = self.error or KafkaTimeoutError("no answer came")
                    return


def _of_another(error: BaseException) -> bool:
    return "part of a batch" in str(error)


@click.command("produce")
@click.argument("topic")
@click.option(
    "-k", "--key-separator", metavar="SEP", help="A line is KEY SEP VALUE; a line without it has no key. \\t is a tab."
)
@click.option("-H", "--header", "headers", multiple=True, metavar="KEY=VALUE", help="Add a header to every record.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Write to this partition.")
@click.option("--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="Who must have a record.")
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("-Z", "--tombstones", is_flag=True, help="Write an empty value, and an empty key, as null.")
@client_options
def command(
    topic: str,
    key_separator: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    tombstones: bool,
    connection: Connection,
) -> None:
    """Write each line of standard input to TOPIC as a record.

    Returns when every record is acknowledged and prints their number on standard error; a record that fails ends the
    command with status 1.
    """
    header_list = _headers(headers)
    separator = None if key_separator is None else unescape(key_separator)
    if separator == b"":
        raise click.UsageError("--key-separator is empty")
    producer = connection.producer(
        acks=ACKS[acks],
        enable_idempotence=ACKS[acks] == -1,
        compression_type=None if compression == "none" else compression,
        linger_ms=5,
        value_serializer=_Tombstones() if tombstones else None,
    )
    deliveries = _Deliveries()
    try:
        _check(producer, topic, partition)
        lines: Iterable[bytes] = sys.stdin.buffer
        try:
            with told_of_outages(connection.unreachable, deliveries.stall):
                try:
                    with ending_at_signals():
                        _send(
                            (_message(line, separator, tombstones) for line in lines),
                            lambda m: producer.send(topic, m.value, m.key, header_list, partition),
                            deliveries,
                        )
                finally:
                    # Also when interrupted: what was read is written before the command ends. The client's own flush
                    # fails where it has split a batch.
                    deliveries.wait(producer.config["delivery_timeout_ms"] / 1000 + _GRACE_S)
        finally:
            click.echo(f"{_records(deliveries.written)} written to {topic}", err=True)
    finally:
        producer.close()
    if deliveries.error is not None:
        why = _limit(deliveries.error, connection, producer, topic) or _words(deliveries.error)
        raise click.ClickException(f"{_records(deliveries.failed)} failed: {why}")


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _headers(pairs: tuple[str, ...]) -> list[tuple[str, bytes]]:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--header takes KEY=VALUE, not {pair!r}")
        found.append((name, unescape(value)))
    return found


def _check(producer: Any, topic: str, partition: int | None) -> None:
    """Find out before anything is read whether the topic is there, or can be created."""
    try:
        partitions = producer.partitions_for(topic)
    except KafkaTimeoutError:
        raise click.ClickException(f"topic {topic} does not exist, and the broker did not create it") from None
    if partition is not None and partition not in partitions:
        raise click.ClickException(f"topic {topic} has no partition {partition}")


def _message(line: bytes, separator: bytes | None, tombstones: bool) -> _Message:
    key, value = None, line.removesuffix(b"\n")
    if separator is not None and separator in value:
        key, _, value = value.partition(separator)
    return _Message((key or None) if tombstones else key, value)


def _send(messages: Iterable[_Message], send: Callable[[_Message], Any], deliveries: _Deliveries) -> None:
    """Send until the end or the first failure."""
    for message in messages:
        if deliveries.error is not None:
            return
        size = message.size
        deliveries.expect(size)
        try:
            future = send(message)
        except (KafkaError, ValueError) as error:
            deliveries.fail(size, error)
            return
        future.add_callback(deliveries.succeed, size)
        future.add_errback(deliveries.fail, size)


def _limit(error: Any, connection: Connection, producer: Any, topic: str) -> str | None:
    """Say which limit a record passed, and what sets it; None for another error, or where the broker does not tell."""
    if "max_request_size" in str(error):
        limit = producer.config["max_request_size"]
        return f"a record is larger than the client's limit of {limit} bytes (-X max.request.size=BYTES sets it)"
    key = _LIMITS.get(type(error))
    if key is None:
        return None
    try:
        with connection.admin() as admin:
            found = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
            value = found["topic"][topic][key]["value"]
    except (KafkaError, KeyError, AdminError):
        return None
    change = f"`kbroker topic alter {topic} -c {key}=BYTES` changes it"
    return f"a batch is larger than the topic's {key}={value} ({error.message}); {change}"


def _words(error: BaseException) -> str:
    said = str(error.args[0]) if error.args and error.args[0] else None
    if isinstance(error, BrokerResponseError):
        return error_text(error, said)
    return said or type(error).__name__

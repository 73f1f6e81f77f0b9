"""`kbroker produce`: write the lines of standard input to a topic.

Owns the parsing of a line into a record: headers, key and value, with the separators and the null marker of
kafka-console-producer's reader.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import click
from kafka.admin import ConfigResource
from kafka.errors import (
    BrokerResponseError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    for_code,
)
from kafka.serializer import Serializer

from kbroker.admin.configs import Subject, described_configs
from kbroker.admin.connection import Connection
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, Unreachable, error_text
from kbroker.admin.own_request import ask_any, live_brokers
from kbroker.cli.client import client_options, ending_at_signals, warn
from kbroker.cli.completion import complete_topics
from kbroker.cli.outage import SILENCE_S, outages_reported
from kbroker.cli.record_format import unescape
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse

_OVERHEAD = 64
Headers = list[tuple[str, bytes]]


class Message(NamedTuple):
    """A record that was parsed from a line."""

    key: bytes | None
    value: bytes
    headers: Headers

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return _OVERHEAD + len(self.key or b"") + len(self.value) + headers


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The form of a line: HEADERS delimiter KEY separator VALUE. Headers and key may be missing."""

    key_separator: bytes | None = None
    headers_delimiter: bytes | None = None
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    empty_is_null: bool = False

    def parse(self, line: bytes) -> Message:
        """Return the record of a line. If the value stands for null, the record has the typed text: see `is_null`."""
        value = line.removesuffix(b"\n")
        headers: Headers = []
        if self.headers_delimiter is not None and self.headers_delimiter in value:
            text, _, value = value.partition(self.headers_delimiter)
            headers = [self._header(each) for each in text.split(self.headers_separator) if each]
        key = None
        if self.key_separator is not None and self.key_separator in value:
            key, _, value = value.partition(self.key_separator)
        return Message(None if key is None or self.is_null(key) else key, value, headers)

    def is_null(self, data: bytes) -> bool:
        """Whether a key or a value stands for null."""
        return (self.empty_is_null and not data) or (self.null_marker is not None and data == self.null_marker)

    def _header(self, text: bytes) -> tuple[str, bytes]:
        """Parse a header; kafka-python cannot send null headers."""
        name, _, value = text.partition(self.headers_key_separator)
        return name.decode("utf-8", "replace"), value


# This many bytes fill many requests, but do not let a large piped file fill the memory.
_MOST_BYTES_IN_FLIGHT: Final = 16 * 1024 * 1024
_GRACE_S: Final = 10.0
_NEVER_CREATES: Final = 4
"""The first Metadata version that supports allow_auto_topic_creation."""
_CODE: Final = re.compile(r"\[Error (-?\d+)\]")
"""The pattern that finds the error code in the client's text about an unexpected answer."""
ACKS: Final = {"0": 0, "1": 1, "all": -1, "-1": -1}
_LIMITS: Final = {MessageSizeTooLargeError: "max.message.bytes", RecordListTooLargeError: "segment.bytes"}
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _Nulls(Serializer):  # type: ignore[misc]
    """Converts values to null. The client refuses a null value without a key unless a serializer returns this null."""

    def __init__(self, lines: LineFormat) -> None:
        self._lines = lines

    def serialize(self, topic: str, headers: object, data: bytes) -> bytes | None:  # noqa: ARG002
        return None if self._lines.is_null(data) else data


class _Deliveries:
    """The results of the sent records. The client's thread reports the results; the command's thread waits for them."""

    def __init__(self) -> None:
        self.written = 0
        self.failed = 0
        self.error: BaseException | None = None
        self._pending = 0
        self._bytes = 0
        self._last_answer = time.monotonic()
        self._changed = threading.Condition()
        self.gave_up = False

    def expect(self, size: int) -> None:
        """Wait until `size` more bytes may be in flight."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < _MOST_BYTES_IN_FLIGHT or self.gave_up)
            if not self._pending:
                self._last_answer = time.monotonic()
            self._bytes += size
            self._pending += 1

    def stall(self) -> bool:
        """Whether no answer has arrived for a while although records are in flight."""
        return self._pending > 0 and time.monotonic() - self._last_answer > SILENCE_S

    def give_up(self, reason: str) -> bool:
        """Count the records in flight as failed if the broker is unreachable before any acknowledgement."""
        with self._changed:
            if self.written:
                return False
            self.gave_up = True
            self.error = self.error or Unreachable(reason)
            self.failed, self._pending = self.failed + self._pending, 0
            self._changed.notify_all()
            return True

    def succeed(self, size: int, _metadata: object) -> None:
        """Count a record that was acknowledged."""
        with self._changed:
            if self.gave_up:
                return
            self.written += 1
            self._forget(size)

    def fail(self, size: int, error: BaseException) -> None:
        """Count a lost record; keep the error that shows the cause."""
        with self._changed:
            if self.gave_up:
                return
            self.failed += 1
            # One bad record makes its whole batch fail; the errors of the batch's other records do not show the cause.
            if self.error is None or (_of_another(self.error) and not _of_another(error)):
                self.error = error
            self._forget(size)

    def _forget(self, size: int) -> None:
        self._pending -= 1
        self._bytes -= size
        self._last_answer = time.monotonic()
        self._changed.notify_all()

    def wait(self, patience_s: float) -> None:
        """Wait until every record is finished; give up if no answer arrives within this time."""
        with self._changed:
            while self._pending:
                if not self._changed.wait(patience_s):
                    self.failed += self._pending
                    self.error = self.error or KafkaTimeoutError("no answer came")
                    return


def _of_another(error: BaseException) -> bool:
    return "part of a batch" in str(error)


@click.command("produce")
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-k",
    "--key-separator",
    metavar="SEP",
    help="The separator of key and value in a line. A line without it has no key. \\t means tab.",
)
@click.option(
    "--headers-delimiter",
    metavar="SEP",
    help="The separator after the headers of a line, which are name:value,name:value. \\t means tab.",
)
@click.option(
    "--headers-separator", metavar="SEP", default=",", show_default=True, help="The separator between two headers."
)
@click.option(
    "--headers-key-separator",
    metavar="SEP",
    default=":",
    show_default=True,
    help="The separator between a header's name and value.",
)
@click.option("--null-marker", metavar="TEXT", help="The text that stands for a null key or value.")
@click.option("-H", "--header", "headers", multiple=True, metavar="KEY=VALUE", help="Add a header to every record.")
@click.option("-p", "--partition", type=click.IntRange(0), help="Write to this partition.")
@click.option(
    "--acks",
    type=click.Choice(list(ACKS)),
    default="all",
    show_default=True,
    help="The replicas that must acknowledge a record.",
)
@click.option("-z", "--compression", type=click.Choice(CODECS), default="none", show_default=True)
@click.option("--sync", is_flag=True, help="Send each record only after the acknowledgement of the previous one.")
@click.option("-Z", "--tombstones", is_flag=True, help="Write an empty key or value as null.")
@client_options
def command(
    topic: str,
    key_separator: str | None,
    headers_delimiter: str | None,
    headers_separator: str,
    headers_key_separator: str,
    null_marker: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    acks: str,
    compression: str,
    sync: bool,
    tombstones: bool,
    connection: Connection,
) -> None:
    """Write each line of standard input to TOPIC as a record.

    Returns when every record is acknowledged, and prints the number of records on standard error. A record that fails
    ends the command with status 1.
    """
    header_list = _headers(headers)
    line_format = LineFormat(
        _separator("--key-separator", key_separator),
        _separator("--headers-delimiter", headers_delimiter),
        unescape(_not_empty("--headers-separator", headers_separator)),
        unescape(_not_empty("--headers-key-separator", headers_key_separator)),
        None if null_marker is None else unescape(null_marker),
        tombstones,
    )
    producer = connection.producer(
        acks=ACKS[acks],
        enable_idempotence=ACKS[acks] == -1,
        compression_type=None if compression == "none" else compression,
        linger_ms=5,
        value_serializer=_Nulls(line_format) if tombstones or null_marker is not None else None,
    )
    deliveries = _Deliveries()
    patience_s = producer.config["delivery_timeout_ms"] / 1000 + _GRACE_S
    try:
        _check(connection, producer, topic, partition)
        lines: Iterable[bytes] = sys.stdin.buffer
        try:
            with outages_reported(connection.unreachable, deliveries.stall, deliveries.give_up):
                try:
                    with ending_at_signals():
                        _send(
                            map(line_format.parse, lines),
                            lambda m: producer.send(topic, m.value, m.key, [*header_list, *m.headers], partition),
                            deliveries,
                            patience_s if sync else None,
                        )
                finally:
                    # Write the records that were read before the command ends, even after a signal. The client's own
                    # flush fails after it has split a batch.
                    deliveries.wait(patience_s)
        finally:
            click.echo(f"{_records(deliveries.written)} written to {topic}", err=True)
    finally:
        if deliveries.gave_up:
            producer._sender.force_close()  # noqa: SLF001 - close(timeout=0) would raise before it gets there
        producer.close()
    if deliveries.error is not None:
        why = _limit(deliveries.error, connection, producer, topic) or _words(deliveries.error)
        raise click.ClickException(f"{_records(deliveries.failed)} failed: {why}")


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _separator(option: str, text: str | None) -> bytes | None:
    return None if text is None else unescape(_not_empty(option, text))


def _not_empty(option: str, text: str) -> str:
    if not text:
        raise click.UsageError(f"{option} is empty")
    return text


def _headers(pairs: tuple[str, ...]) -> list[tuple[str, bytes]]:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--header takes KEY=VALUE, not {pair!r}")
        found.append((name, unescape(value)))
    return found


def _check(connection: Connection, producer: Any, topic: str, partition: int | None) -> None:
    """Check, before reading input, whether the topic exists or can be created; report a created topic."""
    with connection.admin() as admin:
        is_new = _is_missing(admin, topic)
        if is_new and _creates_none(admin):
            raise click.ClickException(f"{no_such_topic(admin, topic)} (auto.create.topics.enable is false)")
    try:
        partitions = producer.partitions_for(topic)
    except KafkaTimeoutError:
        with connection.admin() as admin:
            raise click.ClickException(f"{no_such_topic(admin, topic)}; the broker did not create it") from None
    if is_new:
        warn(f"topic {topic} did not exist; the broker has created it")
    if partition is not None and partition not in partitions:
        raise click.ClickException(f"topic {topic} has no partition {partition}")


def _is_missing(admin: Any, topic: str) -> bool:
    """Whether a topic does not exist; the request never creates the topic."""
    request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    answer = ask_any(admin, request, MetadataResponse, at_least=_NEVER_CREATES)
    return answer is not None and any(each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in answer.topics)


def _creates_none(admin: Any) -> bool:
    """Whether the cluster certainly creates no topics automatically; False if its config cannot be read."""
    with contextlib.suppress(AdminError, KafkaError):
        for broker in live_brokers(admin)[:1]:
            configs = described_configs(admin, Subject("broker", str(broker)), documentation=False)
            return any(each.name == "auto.create.topics.enable" and each.value == "false" for each in configs)
    return False


def _send(
    messages: Iterable[Message], send: Callable[[Message], Any], deliveries: _Deliveries, patience_s: float | None
) -> None:
    """Send until the end or the first failure.

    With `patience_s`, send one record at a time, each within this many seconds.
    """
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
        if patience_s is not None:
            deliveries.wait(patience_s)


def _limit(error: Any, connection: Connection, producer: Any, topic: str) -> str | None:
    """Return the limit that a record exceeds, and its config; None for another error or an unknown limit."""
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
    message = str(error.args[0]) if error.args and error.args[0] else None
    if isinstance(error, BrokerResponseError):
        return error_text(error, message)
    code = _CODE.search(message or "")
    if code is not None:  # the text of kafka-python's error if InitProducerId fails
        return error_text(for_code(int(code[1])))
    return message or type(error).__name__

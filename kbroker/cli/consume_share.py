"""`kbroker consume --share GROUP`: print the records that a share group delivers to this member, and acknowledge them.

Owns the membership, with confluent-kafka's ShareConsumer, because kafka-python has no share groups. Acknowledges a
record only after printing it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import click

from kbroker.admin.connection import Connection
from kbroker.admin.dead_letters import topic_view
from kbroker.admin.own_request import ask_any
from kbroker.cli.client import ending_at_signals
from kbroker.cli.librdkafka import settings_of
from kbroker.cli.outage import SILENCE_S, outages_reported
from kbroker.cli.record_format import Piece
from kbroker.extras import how_to_install
from kbroker.protocol.messages.share_groups import ShareGroupDescribeRequest, ShareGroupDescribeResponse

ACKS: Final = ("accept", "release", "reject")
_POLL_S: Final = 0.2
_COMMIT_S: Final = 10.0
_MOST: Final = 500
_SILENT: Final = logging.getLogger("kbroker.librdkafka")
_SILENT.setLevel(logging.CRITICAL + 1)
"""A silent logger for librdkafka. librdkafka also logs a fatal error, but the exception already contains that error."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The records to request from a group, the form of acknowledgement, and the conditions for stopping."""

    group: str
    ack: str
    piece: Piece
    count: int | None
    timeout_ms: int | None


@dataclass(slots=True)
class _Record:
    """A record of confluent-kafka, in the form that formats print."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    delivery_count: int


@dataclass(slots=True)
class _Progress:
    printed: int = 0
    last_answer: float = field(default_factory=time.monotonic)


def consume_shared(connection: Connection, topics: Sequence[str], wanted: Shared) -> None:
    """Print records until the count is reached, no record arrives for a while, or a signal arrives.

    Raises ClickException.
    """
    library = _library()
    with connection.admin() as admin:
        _check_served(admin, wanted.group)
        topics = tuple(dict.fromkeys(topics))
        for topic in topics:
            topic_view(admin, topic)
    own = {"max.poll.records": min(_MOST, wanted.count or _MOST), "share.acknowledgement.mode": "explicit"}
    others = {"client.id": "kbroker", "group.id": wanted.group, **own}
    settings = settings_of(connection, {}, others, "; --share uses that client")
    progress = _Progress()
    with (
        ending_at_signals(),
        _member(library, settings, topics) as consumer,
        outages_reported(connection.unreachable, lambda: time.monotonic() - progress.last_answer > SILENCE_S),
    ):
        _print_records(library, consumer, wanted, progress)


def _check_served(admin: Any, group: str) -> None:
    """Raise ClickException if the cluster has no share groups: the client would wait forever."""
    request = ShareGroupDescribeRequest([group])
    if ask_any(admin, request, ShareGroupDescribeResponse) is None:
        raise click.ClickException("this cluster serves no share groups")


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise click.UsageError(f"--share needs confluent-kafka: {how_to_install('perf')}") from None
    if not hasattr(confluent_kafka, "ShareConsumer"):
        version = confluent_kafka.__version__
        raise click.UsageError(f"--share needs confluent-kafka 2.16 or newer; installed is {version}")
    return confluent_kafka


@contextmanager
def _member(library: Any, settings: dict[str, Any], topics: Sequence[str]) -> Iterator[Any]:
    """Join the group; unacknowledged records return to the group at the end."""
    try:
        consumer = library.ShareConsumer(settings, logger=_SILENT)
    except (library.KafkaException, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, library.KafkaException) else str(error)
        raise click.UsageError(f"confluent-kafka refuses a setting: {reason}") from None
    try:
        consumer.subscribe(list(topics))
        yield consumer
    finally:
        consumer.close()


def _print_records(library: Any, consumer: Any, wanted: Shared, progress: _Progress) -> None:
    kind = getattr(library.AcknowledgeType, wanted.ack.upper())
    out = sys.stdout.buffer
    while wanted.count is None or progress.printed < wanted.count:
        if wanted.timeout_ms is not None and (time.monotonic() - progress.last_answer) * 1000 >= wanted.timeout_ms:
            return
        messages = list(_polled(library, lambda: consumer.poll(_POLL_S)))
        for message in messages:
            if message.error() is not None:
                raise click.ClickException(f"{message.error().str()} ({message.error().name()})")
            if wanted.count is not None and progress.printed == wanted.count:  # surplus records have arrived
                consumer.acknowledge(message, library.AcknowledgeType.RELEASE)
                continue
            progress.printed += 1
            out.write(wanted.piece(_record(message), progress.printed))
            consumer.acknowledge(message, kind)
        if messages:
            out.flush()
            progress.last_answer = time.monotonic()
            _commit(library, consumer)


def _commit(library: Any, consumer: Any) -> None:
    """Send the acknowledgements. Report each refused acknowledgement, because its records will be delivered again."""
    for place, error in _polled(library, lambda: consumer.commit_sync(_COMMIT_S)).items():
        if error is not None:
            text = f"kbroker: {place.topic} [{place.partition}]: not acknowledged: {error.args[0].str()}"
            click.echo(text, err=True)


def _polled(library: Any, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except library.KafkaException as error:
        raise click.ClickException(f"{error.args[0].str()} ({error.args[0].name()})") from None


def _record(message: Any) -> _Record:
    return _Record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        message.value(),
        message.headers() or (),
        message.delivery_count(),
    )

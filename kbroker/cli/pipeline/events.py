"""`kbroker pipeline events`: website events into a topic, simulated or from web servers' logs.

Owns the verb's options and its last line. The verb has three modes: events in real time (the default), a span of
simulated time as fast as possible (`--days`), and logs as fast as they are read (`--from-log`).
"""

from __future__ import annotations

import datetime
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, Final

import click

from kbroker.admin.connection import Connection
from kbroker.admin.topics import EXISTS, create_topics
from kbroker.admin.visible_everywhere import wait_for_topics
from kbroker.cli.client import client_options
from kbroker.cli.main import of_signal
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.events.access_log import AccessLog, LogEvent
from kbroker.pipeline.events.generator import Arrival, Counts, EventOptions, EventSource, visitor_name
from kbroker.pipeline.events.organisations import write_lookup
from kbroker.pipeline.events.sender import Sender
from kbroker.pipeline.events.tables import DAY_MS
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.progress import Progress, shown

_STEP_S: Final = 5.0
_SHARE: Final = click.FloatRange(0, 1, max_open=True)
_SIMULATED: Final = ("rate", "seed", "visitors", "late", "duplicates", "malformed", "lookup_out")


@dataclass(slots=True)
class _Run:
    """The records to send, with their counts."""

    records: Iterator[Arrival]
    counts: Counts
    live: bool = False
    until_ms: float | None = None
    count: int | None = None
    of_the_past: bool = True


@click.command("events", short_help="Send website events to a topic.")
@click.option("--topic", required=True, metavar="T", help="The target topic; it is created if it does not exist.")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    help="The number of partitions of a new topic; without this option, the broker's default.",
)
@click.option("--rate", type=float, default=10.0, show_default=True, help="The average number of records per second.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="End after this time.")
@click.option("--count", type=click.IntRange(0), help="End after this number of records.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="The seed of the events; the same seed gives the same events.",
)
@click.option(
    "--visitors", type=click.IntRange(1), help="The number of visitors; without this option, as many as the rate needs."
)
@click.option(
    "--days", type=click.FloatRange(0, min_open=True), help="Simulate this number of days, as fast as possible."
)
@click.option(
    "--start", metavar="DATE", help="The start of the simulated days (UTC); without this option, all days are over."
)
@click.option("--late", type=_SHARE, default=0.02, show_default=True, help="The share of late events.")
@click.option("--duplicates", type=_SHARE, default=0.01, show_default=True, help="The share of exact duplicates.")
@click.option("--malformed", type=_SHARE, default=0.002, show_default=True, help="The share of malformed records.")
@click.option("--lookup-out", metavar="FILE", help="Write the organisations of the visitors to this file as CSV.")
@click.option("--from-log", multiple=True, metavar="FILE", help="Send the log of a web server; repeatable.")
@click.option(
    "--salt",
    default="",
    metavar="TEXT",
    envvar="KBROKER_SALT",
    help="The key for the pseudonyms of a log's visitors. KBROKER_SALT hides it from other users of this machine.",
)
@click.option("--keep-query", is_flag=True, help="Keep the query strings of a log's URLs.")
@client_options
def command(topic: str, partitions: int | None, connection: Connection, **options: Any) -> None:
    """Send website events to a topic: live events, those of simulated days, or those in a web server's log.

    Returns when the brokers have received all of them, and prints the number of each kind on standard error.
    """
    try:
        run = _run(options)
        sender = Sender(connection, topic)
        _ensure_topic(connection, topic, partitions, of_the_past=run.of_the_past)
        with shown("events") as progress, _stopping_at_signals() as stop:
            sender.send_all(
                run.records,
                lambda: stop.number is not None,
                clock_ms=_now_ms if run.live else None,
                until_ms=run.until_ms,
                on_sent=_step_reports(progress, run, sender),
            )
    except PipelineError as err:
        raise click.ClickException(str(err)) from err
    click.echo(_last_line(topic, sender.sent, run.counts, bool(options["from_log"])), err=True)
    if stop.number is not None:
        sys.exit(of_signal(stop.number))


def _run(options: dict[str, Any]) -> _Run:
    if options["from_log"]:
        _only_without("--from-log", *_SIMULATED, "days", "seconds", "start")
        return _logged(options)
    _only_with("--from-log", "salt", "keep_query")
    if options["days"] is not None:
        _only_without("--days", "seconds")
    else:
        _only_with("--days", "start")
    return _simulated(options)


def _given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def _only_without(other: str, *names: str) -> None:
    for name in filter(_given, names):
        raise click.UsageError(f"--{name.replace('_', '-')} does not go with {other}")


def _only_with(other: str, *names: str) -> None:
    for name in filter(_given, names):
        raise click.UsageError(f"--{name.replace('_', '-')} goes with {other}")


def _simulated(options: dict[str, Any]) -> _Run:
    days, seconds = options["days"], options["seconds"]
    live = days is None
    event_options = EventOptions(
        start_ms=int(_now_ms()) if live else _start_ms(options["start"], days),
        days=days,
        daily=not live,
        ongoing=live,
        **{name: options[name] for name in ("seed", "rate", "visitors", "count", "late", "duplicates", "malformed")},
    )
    source = EventSource(event_options)
    if options["lookup_out"] is not None:
        _write_lookup(options["lookup_out"], source.visitors)
    until = event_options.start_ms + seconds * 1000 if seconds is not None else None
    # The counts of the source itself also include records that the source has yielded, but that were not sent.
    counts = Counts()
    return _Run(_counted(source, counts), counts, live, until, options["count"], of_the_past=not live)


def _counted(source: EventSource, counts: Counts) -> Iterator[Arrival]:
    """Yield records; count each one when the next record is requested, because only then it was certainly sent."""
    for record in source:
        now = source.counts
        seen = (now.events, now.late, now.duplicates, now.malformed)
        yield record
        counts.events, counts.late, counts.duplicates, counts.malformed = seen


def _logged(options: dict[str, Any]) -> _Run:
    for path in options["from_log"]:
        if os.path.isdir(path) or not os.access(path, os.R_OK):
            raise PipelineError(f"--from-log: {path} cannot be read")
    counts = Counts()
    log = AccessLog(options["salt"], query=options["keep_query"])
    records = islice(_log_events(log, options["from_log"], counts), options["count"])
    return _Run(records, counts, count=options["count"])


def _log_events(log: AccessLog, paths: tuple[str, ...], counts: Counts) -> Iterator[Arrival]:
    for path in paths:
        try:
            for found in log.read_file(path):
                if isinstance(found, LogEvent):
                    counts.events += 1
                    yield found
                else:
                    counts.malformed += 1
        except OSError as err:
            raise PipelineError(f"--from-log: {path} cannot be read: {err.strerror or err}") from err


def _start_ms(text: str | None, days: float) -> int:
    if text is None:
        # Even the last late event must be in the past: brokers refuse timestamps in the future.
        today = int(_now_ms()) // DAY_MS
        return max(today - math.ceil(days) - 1, 0) * DAY_MS
    try:
        start = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"--start takes a date such as 2026-11-21, not {text!r}") from None
    start = start if start.tzinfo else start.replace(tzinfo=datetime.UTC)
    return int(start.timestamp() * 1000)


def _write_lookup(path: str, visitors: int) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            write_lookup(file, map(visitor_name, range(1, visitors + 1)))
    except OSError as err:
        raise PipelineError(f"--lookup-out: {path} cannot be written: {err.strerror or err}") from err


def _ensure_topic(connection: Connection, topic: str, partitions: int | None, *, of_the_past: bool) -> None:
    """Create a topic if it does not exist.

    For events `of_the_past` retention is unlimited: otherwise the broker would delete them immediately.
    """
    if topic in Cluster(connection).topics():
        return
    configs = {"retention.ms": "-1"} if of_the_past else {}
    with connection.admin() as admin:
        refusal = create_topics(admin, [topic], partitions or -1, configs=configs)[topic]
        if refusal is not None and refusal.name != EXISTS:
            raise PipelineError(refusal.text)
        wait_for_topics(admin, [topic])


def _step_reports(progress: Progress, run: _Run, sender: Sender) -> Callable[[Arrival], None]:
    """Return a callback that reports the progress every few seconds."""
    reported_at, reported = time.monotonic(), 0

    def report(record: Arrival) -> None:
        nonlocal reported_at, reported
        if sender.sent % 64 and not run.live:
            return
        now = time.monotonic()
        if now - reported_at >= _STEP_S:
            left = 0 if run.count is None else run.count - sender.sent
            progress.step(sender.sent - reported, left, timestamp=record[0])
            reported_at, reported = now, sender.sent

    return report


def _last_line(topic: str, sent: int, counts: Counts, of_log: bool) -> str:
    if of_log:
        return f"sent {sent:,} events to {topic}; {counts.malformed:,} malformed lines were skipped"
    kinds = f"{counts.events:,} events ({counts.late:,} late), {counts.duplicates:,} duplicates"
    return f"sent {sent:,} records to {topic}: {kinds}, {counts.malformed:,} malformed"


def _now_ms() -> float:
    return time.time() * 1000


@dataclass(slots=True)
class _Stop:
    """The number of the received signal, or 0. As a truth value: whether the verb must stop."""

    number: int | None = None


@contextmanager
def _stopping_at_signals() -> Iterator[_Stop]:
    """Record SIGINT and SIGTERM, so that sent records are delivered and counted before the command ends."""
    stop = _Stop()

    def note(number: int, _frame: FrameType | None) -> None:
        stop.number = stop.number or number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

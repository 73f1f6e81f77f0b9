"""`kbroker schedule`: the records of schedule topics that are still to be delivered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.admin.partition_offsets import parse_time
from kbroker.admin.schedules import (
    ENABLE,
    NEXT_TIMES,
    Scheduled,
    ScheduleTopic,
    cancel,
    first_due,
    following,
    schedule_topics,
)
from kbroker.cli.client import client_options, ending_at_signals, warn
from kbroker.cli.completion import complete_topics
from kbroker.cli.log_output import one_line
from kbroker.cli.output import Column, Facts, Output, Verbs, output_option, wide
from kbroker.cli.record_format import json_bytes, to_bytes
from kbroker.schedules.language import SCHEDULE, TIMEZONE, Schedule, ScheduleError, read_schedule
from kbroker.schedules.times import as_text

_LONGEST: Final = 200
_MOST: Final = 100_000


@click.group("schedule", cls=Verbs)
def command() -> None:
    """List, show and cancel records that a schedule topic delivers later."""


@command.command("list")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="List only the schedules of this topic; repeatable.",
)
@click.option(
    "--before",
    metavar="TIME",
    help="List only records that are due before this time: ms since 1970, or 2026-01-31T12:00:00Z.",
)
@click.option("--failed", is_flag=True, help="List only records that are late because of an error.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=100,
    show_default=True,
    help="List the N records that are due first.",
)
@output_option
@client_options
def list_pending(
    topics: tuple[str, ...], before: str | None, failed: bool, limit: int, output: Output, connection: Connection
) -> None:
    """List pending records, in the order in which they are due.

    Reads the topics from their beginning: the records, and the notes of the leaders about deliveries.
    """
    before_ms = None if before is None else parse_time(before)
    with ending_at_signals(), connection.admin() as admin:
        if topics:
            states = [ScheduleTopic(admin, each) for each in dict.fromkeys(topics)]
        else:
            states = list(_readable(admin))
            if not states:
                warn(f"no topic that you can read has {ENABLE}=true")
        found = first_due(states, limit, before_ms, failed=failed)
    now_ms = int(time.time() * 1000)
    output.rows(
        [_row(each, now_ms) for each in found],
        "topic",
        "partition",
        "offset",
        Column("due", lambda row: as_text(row["due_ms"])),
        "state",
        Column("key", lambda row: _line(row.get("key", row.get("key_base64")))),
        Column("to", lambda row: _line(_to(row))),
        Column("repeats", lambda row: _line(row["repeats"])),
        Column("error", lambda row: _line(row["error"])),
        wide("next try", lambda row: None if row["retry_ms"] is None else as_text(row["retry_ms"])),
    )
    count = sum(each.count for each in states)
    if len(found) < count and not failed and before_ms is None:
        warn(f"{len(found)} of {count} are shown; --limit N shows more")
    _report(states)


def _readable(admin: Any) -> Iterator[ScheduleTopic]:
    """Yield all schedule topics; warn of those that cannot be read."""
    for name, target in schedule_topics(admin).items():
        try:
            yield ScheduleTopic(admin, name, target=target)
        except AdminError as error:
            warn(f"{name} is left out: {error}")


def _row(found: Scheduled, now_ms: int) -> dict[str, Any]:
    place, schedule = found.place, found.schedule
    if found.is_delivering:
        state = "delivering"
    elif found.failure is not None:
        state = "failed"
    else:
        state = "late" if place.due_ms < now_ms else "pending"
    return {
        "topic": place.topic,
        "partition": place.partition,
        "offset": place.offset,
        "due_ms": place.due_ms,
        "state": state,
        **json_bytes("key", found.record.key),
        "to_topic": schedule.topic,
        "to_partition": schedule.partition,
        "repeats": found.repeats,
        "error": found.error,
        "retry_ms": None if found.failure is None or found.failure.retry_ms < 0 else found.failure.retry_ms,
    }


def _to(row: dict[str, Any]) -> str:
    topic, partition = row["to_topic"], row["to_partition"]
    return str(topic) if partition is None else f"{topic}-{partition}"


def _line(value: object) -> object:
    """Return a text from a record as one short line of printable characters."""
    if not isinstance(value, str):
        return value
    return one_line(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")


def _report(states: list[ScheduleTopic]) -> None:
    for state in states:
        if state.unreadable:
            warn(f"{state.topic}: {state.unreadable} batches cannot be read, and were skipped")
        wrong = sum(each.wrong for each in state.partitions.values())
        if wrong:
            warn(f"{state.topic}: {wrong} records have no readable schedule, and are not delivered")


@command.command("show")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("key", required=False)
@click.option("-p", "--partition", type=click.IntRange(0), help="With --offset: the partition of the record.")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="With --partition: the offset of the record.")
@output_option
@client_options
def show(
    topic: str, key: str | None, partition: int | None, offset: int | None, output: Output, connection: Connection
) -> None:
    """Show a pending record: by its KEY, or by its partition and offset.

    If it repeats, its next times are listed.
    """
    by_offset = partition is not None and offset is not None
    if (key is None) != by_offset or (partition is None) != (offset is None):
        raise click.UsageError("give either KEY, or --partition and --offset")
    with ending_at_signals(), connection.admin() as admin:
        state = ScheduleTopic(admin, topic, () if partition is None else (partition,))
        if key is not None:
            places = state.find(to_bytes(key))
        else:
            assert partition is not None
            assert offset is not None
            place = state.at(partition, offset)
            places = [] if place is None else [place]
        found = [each for each in map(state.load, places) if each is not None]
    if not found:
        what = f"the key {key}" if key is not None else f"offset {offset} of partition {partition}"
        raise AdminError(f"nothing is pending in {topic} with {what}")
    now_ms = int(time.time() * 1000)
    documents = [_document(each, now_ms) for each in found]
    output.show(documents, *(_facts(each) for each in documents))
    _report([state])


def _document(found: Scheduled, now_ms: int) -> dict[str, Any]:
    record = found.record
    return {
        **_row(found, now_ms),
        "timestamp": record.timestamp,
        **json_bytes("value", record.value),
        **{f"to_{name}": text for name, text in json_bytes("key", found.schedule.key).items()},
        "headers": [{"key": name, **json_bytes("value", value)} for name, value in record.headers],
        "next_ms": found.next_times(),
    }


def _facts(found: dict[str, Any]) -> Facts:
    pairs: list[tuple[str, object]] = [
        ("record", f"{found['topic']}-{found['partition']}, offset {found['offset']}"),
        ("written", as_text(found["timestamp"])),
        ("state", found["state"]),
        ("due", as_text(found["due_ms"])),
        ("to", _to(found)),
        ("error", found["error"]),
        ("repeats", found["repeats"]),
        *(("then", as_text(each)) for each in found["next_ms"][1:]),
        *((name, value) for name, value in found.items() if name.startswith(("key", "value", "to_key"))),
    ]
    for header in found["headers"]:
        pairs += [(f"header {header['key']}", value) for name, value in header.items() if name != "key"]
    return Facts([(str(_line(name)), _line(value)) for name, value in pairs])


@command.command("cancel")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@client_options
def cancel_pending(topic: str, keys: tuple[str, ...], connection: Connection) -> None:
    """Cancel the pending records with these keys.

    Writes a record without a value for each key, as any client can. A record whose delivery has begun is still
    delivered, but does not repeat.
    """
    with ending_at_signals(), connection.admin() as admin:
        cancelled = cancel(admin, connection, topic, [to_bytes(each) for each in dict.fromkeys(keys)])
    for place in cancelled:
        click.echo(f"cancelled: {topic}-{place.partition}, offset {place.offset}, due {as_text(place.due_ms)}")


@command.command("next")
@click.argument("expression")
@click.option("--timezone", metavar="ZONE", help="The time zone of a cron expression; without this option, UTC.")
@click.option("--after", metavar="TIME", help="Print times after this time; without this option, after now.")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(1, 1000),
    default=NEXT_TIMES,
    show_default=True,
    help="The number of times to print.",
)
def next_times(expression: str, timezone: str | None, after: str | None, count: int) -> None:
    """Print when an expression of x-schedule fires next: "0 9 * * mon-fri", "@every 5m"."""
    after_ms = int(time.time() * 1000) if after is None else parse_time(after)
    headers: list[tuple[str, bytes | None]] = [(SCHEDULE, to_bytes(expression))]
    if timezone is not None:
        headers.append((TIMEZONE, to_bytes(timezone)))
    try:
        schedule = read_schedule(b"", tuple(headers), after_ms, "-")
    except ScheduleError as error:
        raise click.UsageError(str(error)) from None
    assert isinstance(schedule, Schedule)
    for ms in islice(following(schedule, schedule.due_ms), count):
        click.echo(as_text(ms) if timezone is None else _in_zone(ms, timezone))


def _in_zone(ms: int, timezone: str) -> str:
    return datetime.fromtimestamp(ms / 1000, ZoneInfo(timezone)).isoformat(timespec="seconds")

"""`kbroker deadletter`: the dead letters of share groups and of Kafka Connect, in any Kafka cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, TypeVar

import click

from kbroker.admin.connection import Connection
from kbroker.admin.dead_letters import (
    DeadLetter,
    Letters,
    Originals,
    causes_of,
    replayed_to,
    strangers_of,
    topic_of_group,
)
from kbroker.admin.errors import raise_any
from kbroker.admin.replays import Replay, Row, Wanted, check, purge, purges
from kbroker.cli.client import client_options, ending_at_signals
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.log_output import one_line
from kbroker.cli.output import Column, Facts, Output, Part, Table, Verbs, output_option, time_text
from kbroker.cli.record_format import json_bytes

Result = TypeVar("Result")
_LONGEST: Final = 1_000
"""The maximum number of characters of a text in a table; documents contain the complete text."""
_NOT_YET: Final = "nothing was changed; add --execute to do it"
_NONE_LEFT: Final = "no dead letter is left to replay; --again begins at the first one"
_NONE_TO_PURGE: Final = "there is no such dead letter"


@click.group("deadletter", cls=Verbs)
def command() -> None:
    """List, show, replay and purge dead letters."""


def _of_topic(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the argument TOPIC and the option --group to a verb."""
    function = click.argument("topic", required=False, shell_complete=complete_topics)(function)
    return click.option(
        "--group",
        metavar="GROUP",
        shell_complete=complete_groups,
        help="Use the dead letter topic of this share group.",
    )(function)


_partitions: Final = click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Use only this partition; repeatable.",
)
_execute: Final = click.option(
    "--execute", is_flag=True, help="Execute the change. Without this option, only show its effect."
)
_dry_run: Final = click.option("--dry-run", is_flag=True, help="Only show the effect; this is the default.")


def _chosen(admin: Any, topic: str | None, group: str | None) -> str:
    if (topic is None) == (group is None):
        raise click.UsageError("give either a topic or --group")
    return topic_of_group(admin, group) if topic is None and group is not None else str(topic)


# -- list


@command.command("list")
@_of_topic
@_partitions
@output_option
@client_options
def list_causes(
    topic: str | None, group: str | None, partitions: tuple[int, ...], output: Output, connection: Connection
) -> None:
    """Count dead letters by cause: origin, group and message."""
    with ending_at_signals(), connection.admin() as admin:
        name = _chosen(admin, topic, group)
        letters = Letters(admin, name, partitions)
        causes = causes_of(letters.read(), replayed_to(admin, name))
    rows = [asdict(each) for each in causes]
    output.rows(
        rows,
        Column("origin", lambda row: _line(row["topic"])),
        "partition",
        Column("group", lambda row: _line(row["group"])),
        Column("message", lambda row: _line(row["message"])),
        "count",
        "replayed",
        Column("first", lambda row: time_text(row["first_ms"])),
        Column("last", lambda row: time_text(row["last_ms"])),
    )
    _report_unreadable(letters)
    _report_strangers(name, strangers_of(causes))


def _line(value: object) -> object:
    """Return a text from a record as one short line of printable characters, without control sequences."""
    if not isinstance(value, str):
        return value
    return one_line(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")


def _report_unreadable(letters: Letters) -> None:
    if letters.unreadable:
        click.echo(f"kbroker: {letters.unreadable} batches cannot be read, and were skipped", err=True)


def _report_strangers(topic: str, count: int) -> None:
    """Report records without an origin."""
    if count:
        records = "1 record has" if count == 1 else f"{count} records have"
        text = f"kbroker: {records} no header that names an origin: is {topic} a dead letter topic?"
        click.echo(text, err=True)


# -- show


@command.command("show")
@_of_topic
@_partitions
@click.option("--offset", type=click.IntRange(0), metavar="N", help="Start at this offset.")
@click.option(
    "-c", "--count", type=click.IntRange(1), default=10, show_default=True, help="Print at most N dead letters."
)
@click.option("--all", "everything", is_flag=True, help="Also print dead letters that were replayed.")
@output_option
@client_options
def show(
    topic: str | None,
    group: str | None,
    partitions: tuple[int, ...],
    offset: int | None,
    count: int,
    everything: bool,
    output: Output,
    connection: Connection,
) -> None:
    """Show dead letters that were not replayed yet, with their records, origins and delivery counts.

    The record is read from the topic of origin; if it is gone there, the copy in the dead letter is shown.
    """
    with ending_at_signals(), connection.admin() as admin:
        name = _chosen(admin, topic, group)
        letters, originals = Letters(admin, name, partitions), Originals(admin)
        if offset is not None:
            begin: Mapping[int, int] = dict.fromkeys(letters.bounds, offset)
        else:
            begin = {} if everything else replayed_to(admin, name)
        found = [_document(each, originals) for each in islice(letters.read(begin), count)]
    output.show(found, *(_facts(each) for each in found))
    _report_unreadable(letters)
    _report_strangers(name, sum(each["origin"]["topic"] is None for each in found))


def _document(letter: DeadLetter, originals: Originals) -> dict[str, Any]:
    record = letter.record
    found, problem = originals.told(letter)
    data: dict[str, Any] = {"record": None, "problem": problem}
    if found is not None:
        key, value, headers = found
        data["record"] = {
            **json_bytes("key", key),
            **json_bytes("value", value),
            "headers": [{"key": name, **json_bytes("value", each)} for name, each in headers],
        }
    place = {"partition": record.partition, "offset": record.offset, "timestamp": record.timestamp}
    return {**place, "origin": asdict(letter.origin), **data}


def _facts(letter: Mapping[str, Any]) -> Part:
    origin, record = letter["origin"], letter["record"]
    pairs: list[tuple[str, object]] = [
        ("letter", f"{letter['partition']}:{letter['offset']}, {time_text(letter['timestamp'])}"),
        ("origin", _place(origin)),
        ("group", origin["group"]),
        ("deliveries", origin["deliveries"]),
        ("message", origin["message"]),
    ]
    if record is None:
        pairs.append(("record", letter["problem"]))
    else:
        pairs += [(name, value) for name, value in record.items() if name != "headers"]
        for each in record["headers"]:
            pairs += [(f"header {each['key']}", value) for name, value in each.items() if name != "key"]
    return Facts([(str(_line(name)), _line(value)) for name, value in pairs])


def _place(origin: Mapping[str, Any]) -> str | None:
    """Return the topic, partition and offset of origin, with a question mark for a missing partition or offset."""
    if origin["topic"] is None:
        return None
    partition, offset = ("?" if origin[name] is None else origin[name] for name in ("partition", "offset"))
    return f"{origin['topic']}-{partition}, offset {offset}"


# -- replay


@command.command("replay")
@_of_topic
@_partitions
@click.option(
    "--to", metavar="TOPIC", shell_complete=complete_topics, help="Replay to this topic instead of the original topic."
)
@click.option("-c", "--count", type=click.IntRange(1), help="Replay at most N dead letters.")
@click.option(
    "--again", is_flag=True, help="Start at the first dead letter again. The next replay continues after this one."
)
@click.option("--keep-headers", is_flag=True, help="Keep the headers about the failure.")
@click.option("--skip", is_flag=True, help="Skip dead letters that cannot be replayed, and count them as replayed.")
@_execute
@_dry_run
@output_option
@client_options
def replay(
    topic: str | None,
    group: str | None,
    partitions: tuple[int, ...],
    to: str | None,
    count: int | None,
    again: bool,
    keep_headers: bool,
    skip: bool,
    execute: bool,
    dry_run: bool,
    output: Output,
    connection: Connection,
) -> None:
    """Write dead letters back to the partitions of their origin, in order.

    A replay begins where the last replay ended. It moves its mark in the transaction that writes the records, so no
    record is lost or written twice, however the replay ends. The mark is the committed offsets of the group
    kbroker-deadletter-TOPIC.
    """
    _check_execute(execute=execute, dry_run=dry_run)
    with ending_at_signals(), connection.admin() as admin:
        name = _chosen(admin, topic, group)
        work = Replay(admin, Wanted(name, to, partitions, count, again=again, keep_headers=keep_headers, skip=skip))
        rows = work.execute(connection) if execute else work.preview()
    _print(output, rows)
    if not execute and not skip:
        check(rows)
    _report_end(execute=execute, nothing=None if rows else _NONE_LEFT)


def _report_end(*, execute: bool, nothing: str | None) -> None:
    """Report that nothing was done, because there is nothing to do or --execute is missing."""
    if nothing is not None or not execute:
        click.echo(nothing or _NOT_YET, err=True)


def _print(output: Output, rows: list[Row]) -> None:
    columns: list[Column | str] = ["partition", "first-offset", "last-offset", "count", "to-topic", "to-partition"]
    if any(row.problem is not None for row in rows):
        columns.append(Column("cannot be replayed", "problem"))
    output.rows([asdict(row) for row in rows], *columns)


def _check_execute(*, execute: bool, dry_run: bool) -> None:
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other")


# -- purge


@command.command("purge")
@_of_topic
@_partitions
@click.option("--replayed", is_flag=True, help="Delete the dead letters that were replayed.")
@click.option(
    "--before-offset", type=click.IntRange(0), metavar="N", help="Delete all dead letters with a lower offset."
)
@click.option("--all", "everything", is_flag=True, help="Delete all dead letters.")
@_execute
@_dry_run
@output_option
@client_options
def purge_letters(
    topic: str | None,
    group: str | None,
    partitions: tuple[int, ...],
    replayed: bool,
    before_offset: int | None,
    everything: bool,
    execute: bool,
    dry_run: bool,
    output: Output,
    connection: Connection,
) -> None:
    """Delete dead letters up to an offset of each partition, for good."""
    _check_execute(execute=execute, dry_run=dry_run)
    if sum([replayed, before_offset is not None, everything]) != 1:
        raise click.UsageError("choose one of --replayed, --before-offset and --all")
    failures: list[str] = []
    with connection.admin() as admin:
        name = _chosen(admin, topic, group)
        before = replayed_to(admin, name) if replayed else before_offset
        wanted = purges(admin, name, before, partitions)
        if execute and wanted:
            failures = purge(admin, name, wanted)
    rows = [{**asdict(each), "most": each.most} for each in wanted]
    output.show(rows, Table(rows, ("partition", "first-offset", "before-offset", Column("at most", "most"))))
    raise_any(failures)
    _report_end(execute=execute, nothing=None if wanted else _NONE_TO_PURGE)

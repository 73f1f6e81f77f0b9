"""`kbroker record`: find records by key, value, header or time, and delete records before an offset, in any Kafka."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import click
from kafka.structs import TopicPartition

from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.admin.partition_offsets import parse_time
from kbroker.admin.placement import Key, leaders
from kbroker.admin.records import TO_THE_END, assign, at_time, delete_records, first_offsets_at, position
from kbroker.cli import record_format
from kbroker.cli.client import client_options, confirm, ending_at_signals
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Output, Verbs, output_option

_POLL_MS: Final = 200
_MOST_RECORDS: Final = 500
_REPORT_S: Final = 1.0
Test = Callable[[Any], bool]


@click.group("record", cls=Verbs)
def command() -> None:
    """Find records, and delete the records before an offset."""


# -- find


@command.command("find", epilog="\b\nThe letters of FORMAT are those of kcat:" + record_format.HELP)
@click.argument("topic", shell_complete=complete_topics)
@click.option("-k", "--key", metavar="TEXT", help="Find records with this key.")
@click.option("--key-pattern", metavar="REGEX", help="Find records whose key contains a match.")
@click.option("--value-pattern", metavar="REGEX", help="Find records whose value contains a match.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME[=TEXT]", help="Find records with this header; repeatable."
)
@click.option("--since", metavar="TIME", help="Find records from this time on: ms since 1970, or 2026-01-31T12:00:00Z.")
@click.option("--until", metavar="TIME", help="Find records before this time.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Search only this partition; repeatable.",
)
@click.option("-c", "--count", type=click.IntRange(1), help="End after N records.")
@click.option("-f", "--format", "pattern", metavar="FORMAT", help="The format of a record; without this option, JSON.")
@client_options
def find(
    topic: str,
    key: str | None,
    key_pattern: str | None,
    value_pattern: str | None,
    headers: tuple[str, ...],
    since: str | None,
    until: str | None,
    partitions: tuple[int, ...],
    count: int | None,
    pattern: str | None,
    connection: Connection,
) -> None:
    """Print the records of a topic that match the options, up to the current end.

    Reads all records from --since on, because only time is indexed. Exits with 1 if no record matches.
    """
    begins = None if since is None else parse_time(since)
    tests = list(_tests(key, key_pattern, value_pattern, headers, begins, None if until is None else parse_time(until)))
    try:
        piece = record_format.as_json if pattern is None else record_format.Format(pattern)
    except record_format.FormatError as err:
        raise click.UsageError(f"--format: {err}") from None
    consumer = connection.consumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        exclude_internal_topics=False,
    )
    found = 0
    with ending_at_signals():
        try:
            first, ends = assign(consumer, [topic], partitions)
            for partition, offset in (first if begins is None else at_time(consumer, ends, begins)).items():
                consumer.seek(partition, offset)
            for record in _matching(consumer, ends, tests):
                found += 1
                sys.stdout.buffer.write(piece(record, found))
                sys.stdout.buffer.flush()
                if found == count:
                    break
        finally:
            consumer.close(autocommit=False, timeout_ms=0)
    if not found:
        raise click.ClickException(f"topic {topic} has no such record")


def _tests(
    key: str | None,
    key_pattern: str | None,
    value_pattern: str | None,
    headers: tuple[str, ...],
    since_ms: int | None,
    until_ms: int | None,
) -> Iterator[Test]:
    """Yield the tests for a record."""
    if key is not None:
        wanted = record_format.to_bytes(key)
        yield lambda r: r.key == wanted
    if key_pattern is not None:
        of_key = _compiled("--key-pattern", key_pattern)
        yield lambda r: r.key is not None and of_key.search(r.key) is not None
    if value_pattern is not None:
        of_value = _compiled("--value-pattern", value_pattern)
        yield lambda r: r.value is not None and of_value.search(r.value) is not None
    for each in headers:
        yield _header_test(each)
    if since_ms is not None:
        yield lambda r: r.timestamp >= since_ms
    if until_ms is not None:
        yield lambda r: r.timestamp < until_ms


def _header_test(text: str) -> Test:
    name, equals, value = text.partition("=")
    data = record_format.to_bytes(value)
    return lambda r: any(key == name and (not equals or held == data) for key, held in r.headers)


def _compiled(option: str, text: str) -> re.Pattern[bytes]:
    try:
        return re.compile(record_format.to_bytes(text))
    except re.error as err:
        raise click.UsageError(f"{option}: {text!r} is no regular expression: {err}") from None


def _matching(consumer: Any, ends: Mapping[TopicPartition, int], tests: list[Test]) -> Iterator[Any]:
    """Yield matching records of partitions up to their ends; on a terminal, report the progress at intervals."""
    read = found = 0
    reported = time.monotonic()
    left = {each for each, end in ends.items() if position(consumer, each) < end}
    while left:
        for records in consumer.poll(_POLL_MS, max_records=_MOST_RECORDS).values():
            for record in records:
                if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                    read += 1
                    if all(test(record) for test in tests):
                        found += 1
                        yield record
        done = {each for each in left if position(consumer, each) >= ends[each]}
        if done:
            consumer.pause(*done)
            left -= done
        if sys.stderr.isatty() and time.monotonic() - reported > _REPORT_S:
            reported = time.monotonic()
            click.echo(f"kbroker: {read:,} records read, {found:,} found", err=True)


# -- delete


@command.command("delete")
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Delete only from this partition; repeatable.",
)
@click.option("--before-offset", type=click.IntRange(0), metavar="N", help="Delete all records with a lower offset.")
@click.option(
    "--before-time", metavar="TIME", help="Delete all records before the first one with this timestamp or a later one."
)
@click.option("--all", "everything", is_flag=True, help="Delete all records.")
@click.option(
    "--offset-json-file",
    "offsets_file",
    type=click.File("rb"),
    help="A file of offsets, in the format of kafka-delete-records.",
)
@click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")
@output_option
@client_options
def delete(
    topic: str | None,
    partitions: tuple[int, ...],
    before_offset: int | None,
    before_time: str | None,
    everything: bool,
    offsets_file: Any,
    yes: bool,
    output: Output,
    connection: Connection,
) -> None:
    """Delete the records of partitions before an offset, for good. The partitions then begin at this offset."""
    choices = [before_offset is not None, before_time is not None, everything, offsets_file is not None]
    if sum(choices) != 1 or (offsets_file is None) == (topic is None):
        raise click.UsageError("give a topic and --before-offset, --before-time or --all, or --offset-json-file alone")
    with connection.admin() as admin:
        if offsets_file is not None:
            wanted = _parse_file(offsets_file.read())
            led = {key: leader for name in {key[0] for key in wanted} for key, leader in leaders(admin, name).items()}
        else:
            assert topic is not None
            led = leaders(admin, topic)
            chosen = [(topic, each) for each in partitions] or sorted(led)
            wanted = dict.fromkeys(chosen, TO_THE_END if before_offset is None else before_offset)
        missing = sorted(key for key in wanted if key not in led)
        if missing:
            raise click.ClickException(f"topic {missing[0][0]} has no partition {missing[0][1]}")
        if before_time is not None:
            wanted = first_offsets_at(connection, wanted, parse_time(before_time))
        places = ", ".join(f"{name}-{index} {_before(at)}" for (name, index), at in list(wanted.items())[:5])
        more = f" and {len(wanted) - 5} more partitions" if len(wanted) > 5 else ""
        if not yes:
            confirm(f"delete records of {places}{more}?")
        rows, failures = delete_records(admin, wanted, led)
    marks = [{"topic": name, "partition": index, "low_watermark": at} for name, index, at in sorted(rows)]
    output.rows(marks, "topic", "partition", "low watermark")
    raise_any(failures)


def _before(offset: int) -> str:
    return "to its end" if offset == TO_THE_END else f"before {offset}"


def _parse_file(data: bytes) -> dict[Key, int]:
    """Parse {"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}."""
    try:
        return {(str(p["topic"]), int(p["partition"])): int(p["offset"]) for p in json.loads(data)["partitions"]}
    except (ValueError, TypeError, KeyError):
        form = '{"partitions": [{"topic": "t", "partition": 0, "offset": 5}], "version": 1}'
        raise click.ClickException(f"--offset-json-file: it does not have the form {form}") from None

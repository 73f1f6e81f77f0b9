"""`kbroker consume`: print the records of topics; consume_share.py does it for --share.

Owns the start and the end of reading. Commits the offsets of a group only for printed records.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import click
from kafka.admin import MemberToRemove
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import CommitFailedError, CorruptRecordError, KafkaError, RebalanceInProgressError
from kafka.structs import ConsumerGroupMetadata, MemberState, OffsetAndMetadata, TopicPartition

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.admin.fetching import unreadable_at
from kbroker.admin.partition_offsets import parse_time
from kbroker.admin.records import assign, at_time, finish_join, forget_fetched, known_partitions, position
from kbroker.cli import record_format
from kbroker.cli.client import client_options, ending_at_signals
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.consume_share import ACKS, Shared, consume_shared
from kbroker.cli.option_types import whole_match
from kbroker.cli.outage import SILENCE_S, outages_reported
from kbroker.filters.filtering import Filter, compile_filter
from kbroker.filters.tokens import FilterError

_POLL_MS: Final = 200
_MOST_RECORDS: Final = 500
_CLOSE_MS: Final = 2_000
_PAUSE_S: Final = 0.02
_OFFSET_HELP: Final = "The start: beginning, end, N, -N before the end, +N after the beginning, @TIME (ms or ISO)."


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of reading: the beginning, the end, a distance from one of them, an offset, or a time in ms."""

    kind: str
    number: int = 0


@dataclass(slots=True)
class _Printing:
    """The records to print, their number, and the conditions for stopping."""

    piece: record_format.Piece
    count: int | None
    timeout_ms: int | None
    until_end: bool
    matches: Filter | None
    printed: int = 0
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    assigned: bool = False
    last_answer: float = field(default_factory=time.monotonic)
    """The time at which the last records arrived."""

    def room(self) -> int:
        """Return the number of records that may still be read now."""
        if self.count is None or self.matches is not None:
            return _MOST_RECORDS
        return min(_MOST_RECORDS, self.count - self.printed)

    @property
    def is_enough(self) -> bool:
        return self.count is not None and self.printed >= self.count


@click.command("consume", epilog="\b\nThe letters of FORMAT are those of kcat:" + record_format.HELP)
@click.argument("topics", nargs=-1, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--include", metavar="REGEX", help="Read all topics whose whole name matches, instead of named topics.")
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the oldest record. A group does this only without a committed offset.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="With read_committed, leave out the records of open and aborted transactions.",
)
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Read as a member of this group, and commit the printed records.",
)
@click.option(
    "--share",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Read from this share group, and acknowledge each printed record.",
)
@click.option(
    "--ack", type=click.Choice(ACKS), help="How to acknowledge the records of --share; without this option, accept."
)
@click.option("-c", "--count", "--max-messages", "count", type=click.IntRange(1), help="End after N records.")
@click.option(
    "-f",
    "--format",
    "pattern",
    metavar="FORMAT",
    help="The format of a record; without this option, its value and \\n.",
)
@click.option("--filter", "wanted", metavar="EXPR", help="Print only records that match: A || B, or header.x = 'y'.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Read only this partition; repeatable.",
)
@click.option("-o", "--offset", metavar="OFFSET", help=_OFFSET_HELP)
@click.option(
    "--timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="End when no record arrives for this time, also while joining a group.",
)
@click.option("--until-end", is_flag=True, help="End at the last records that exist at the start.")
@click.option("-Z", "--null", "show_null", is_flag=True, help="Print NULL for a null key or value.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as a line of JSON.")
@click.option("--skip-corrupt", is_flag=True, help="Skip unreadable batches, and report each.")
@client_options
def command(
    topics: tuple[str, ...],
    include: str | None,
    from_beginning: bool,
    isolation_level: str | None,
    group: str | None,
    share: str | None,
    ack: str | None,
    count: int | None,
    pattern: str | None,
    wanted: str | None,
    partitions: tuple[int, ...],
    offset: str | None,
    timeout: int | None,
    until_end: bool,
    show_null: bool,
    as_json: bool,
    skip_corrupt: bool,
    connection: Connection,
) -> None:
    """Print the records of topics, from now on, or from --offset or --from-beginning.

    EXPR is either tags (A || B, compared with the header tag), or a condition such as header.region = 'EU' AND
    value.amount > 100. Fields are header.NAME, key, value, value.NAME, timestamp, offset and partition; docs/filters.md
    describes the language.

    A share group itself decides where it begins, according to the group's config share.auto.offset.reset.
    """
    if group is not None and (partitions or offset is not None):
        raise click.UsageError("--partition and --offset do not go with --group, which has its own offsets")
    if from_beginning and offset is not None:
        raise click.UsageError("--from-beginning and --offset exclude each other")
    if as_json and pattern is not None:
        raise click.UsageError("--json and --format exclude each other")
    if bool(topics) == (include is not None):
        raise click.UsageError("give either topics or --include")
    if share is not None:
        _check_shared(
            {
                "--from-beginning": from_beginning,
                "--offset": offset is not None,
                "--partition": bool(partitions),
                "--group": group is not None,
                "--include": include is not None,
                "--filter": wanted is not None,
                "--isolation-level": isolation_level is not None,
                "--until-end": until_end,
                "--skip-corrupt": skip_corrupt,
            }
        )
        shared = Shared(share, ack or "accept", _piece(as_json, pattern, show_null), count, timeout)
        consume_shared(connection, topics, shared)
        return
    if ack is not None:
        raise click.UsageError("--ack goes with --share")
    start = _Start("beginning") if from_beginning else _parse_start(offset or "end")
    matches = None if wanted is None else _filter(wanted)
    printing = _Printing(_piece(as_json, pattern, show_null), count, timeout, until_end, matches)
    consumer = connection.consumer(
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest" if group is None or from_beginning else "latest",
        exclude_internal_topics=False,
        **({} if isolation_level is None else {"isolation_level": isolation_level}),
    )
    with (
        ending_at_signals(),
        _closing(consumer, connection),
        outages_reported(connection.unreachable, lambda: time.monotonic() - printing.last_answer > SILENCE_S),
    ):
        if include is not None:
            topics = _included(consumer, include)
        if group is None:
            _assign(consumer, topics, partitions, start, printing)
        else:
            _subscribe(consumer, topics, printing)
        _print_records(consumer, printing, group is not None, partial(_unreadable, connection, consumer, skip_corrupt))


# -- the end ------------------------------------------------------------------------------------------------------


@contextmanager
def _closing(consumer: Any, connection: Connection) -> Iterator[None]:
    """Close the consumer and leave its group in any case, within some seconds."""
    try:
        yield
    finally:
        joining = _joining(consumer)
        consumer.close(autocommit=False, timeout_ms=_CLOSE_MS if joining is None else 0)
        if joining is not None:
            with suppress(KafkaError, AdminError):  # if the removal fails, the member's session expires
                _remove(connection, joining)


def _joining(consumer: Any) -> ConsumerGroupMetadata | None:
    """Return the membership of a consumer that is joining its group; None if closing the consumer is enough.

    On the client's own connection, LeaveGroup would wait for the answer to JoinGroup. A broker sends that answer only
    after the other members have joined as well. Waits for the member id of a new member, which the coordinator returns
    immediately.
    """
    deadline = time.monotonic() + _CLOSE_MS / 1000
    while True:
        now: ConsumerGroupMetadata = consumer.group_metadata()
        rebalancing = now.state == MemberState.REBALANCING
        if now.state == MemberState.STABLE or now.group_instance_id is not None or not (rebalancing or now.member_id):
            return None
        if now.member_id:
            return now
        if time.monotonic() > deadline:
            return None
        time.sleep(_PAUSE_S)


def _remove(connection: Connection, member: ConsumerGroupMetadata) -> None:
    """Remove a member from its group on a separate connection."""
    hasty = {"request_timeout_ms": _CLOSE_MS, "bootstrap_timeout_ms": _CLOSE_MS}
    with replace(connection, settings={**connection.settings, **hasty}).admin() as admin:
        admin.remove_group_members(member.group_id, [MemberToRemove(member.member_id)])


# -- options ------------------------------------------------------------------------------------------------------


def _check_shared(others: Mapping[str, bool]) -> None:
    """Raise UsageError if one of these options is given, because a share group makes these decisions itself."""
    given = [name for name, is_given in others.items() if is_given]
    if not given:
        return
    text = f"{' and '.join(given)} {'does' if len(given) == 1 else 'do'} not go with --share"
    if {"--from-beginning", "--offset"} & {*given}:
        text += ": its config share.auto.offset.reset says where a new group begins, and `kbroker group reset` moves it"
    raise click.UsageError(text)


def _piece(as_json: bool, pattern: str | None, show_null: bool) -> record_format.Piece:
    if as_json:
        return record_format.as_json
    try:
        return record_format.Format("%v\\n" if pattern is None else pattern, b"NULL" if show_null else b"")
    except record_format.FormatError as err:
        raise click.UsageError(f"--format: {err}") from None


def _filter(text: str) -> Filter:
    try:
        return compile_filter(text)
    except FilterError as error:
        raise click.UsageError(f"--filter: {error}") from None


def _parse_start(text: str) -> _Start:
    if text in ("beginning", "start", "earliest"):
        return _Start("beginning")
    if text in ("end", "latest"):
        return _Start("end")
    if re.fullmatch(r"[+-]\d+", text):
        return _Start("beginning" if text[0] == "+" else "end", int(text))
    if text.isdecimal():
        return _Start("offset", int(text))
    found = re.fullmatch(r"s?@(.+)", text)
    if found is None:
        raise click.UsageError(f"--offset: {text!r} is no offset; see --help")
    return _Start("time", parse_time(found[1]))


# -- where reading starts -----------------------------------------------------------------------------------------


def _included(consumer: Any, include: str) -> tuple[str, ...]:
    """Return the existing topics that match. Raises ClickException if no topic matches."""
    matches = whole_match(include)
    found = tuple(sorted(topic for topic in consumer.topics() if matches(topic) and not topic.startswith("__")))
    if not found:
        raise click.ClickException(f"no topic matches {include}; `kbroker topic list` lists the existing topics")
    return found


def _assign(
    consumer: Any, topics: tuple[str, ...], wanted: tuple[int, ...], start: _Start, printing: _Printing
) -> None:
    """Read partitions without a group, from `start`."""
    first, printing.ends = assign(consumer, topics, wanted)
    printing.assigned = True
    for each, offset in _start_offsets(consumer, start, first, printing.ends).items():
        consumer.seek(each, offset)


def _start_offsets(
    consumer: Any, start: _Start, first: dict[TopicPartition, int], end: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    if start.kind == "time":
        return at_time(consumer, end, start.number)
    if start.kind == "offset":
        for each, oldest in first.items():
            if not oldest <= start.number <= end[each]:
                raise click.ClickException(
                    f"offset {start.number} of {each.topic} [{each.partition}] is out of range: "
                    f"it has offsets from {oldest} to {end[each]}"
                )
        return dict.fromkeys(first, start.number)
    edge = first if start.kind == "beginning" else end
    return {each: min(max(edge[each] + start.number, first[each]), end[each]) for each in first}


class _Assignments(ConsumerRebalanceListener):  # type: ignore[misc]
    """Records whether the group has sent this member an assignment, even if it is empty."""

    def __init__(self, printing: _Printing) -> None:
        self._printing = printing

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:  # noqa: ARG002
        self._printing.assigned = False

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:  # noqa: ARG002
        self._printing.assigned = True


def _subscribe(consumer: Any, topics: tuple[str, ...], printing: _Printing) -> None:
    consumer.subscribe(list(topics), listener=_Assignments(printing))
    for topic in topics:  # without this, the group's leader finds the partitions after its join, and joins again
        known_partitions(consumer, topic)


# -- printing -----------------------------------------------------------------------------------------------------


def _print_records(
    consumer: Any, printing: _Printing, in_group: bool, unreadable: Callable[[Exception], TopicPartition]
) -> None:
    out = sys.stdout.buffer
    printing.last_answer = time.monotonic()
    while not _at_end(consumer, printing):
        silence_ms = (time.monotonic() - printing.last_answer) * 1000
        if printing.timeout_ms is not None and silence_ms >= printing.timeout_ms:
            return
        wait = _POLL_MS if printing.timeout_ms is None else min(_POLL_MS, printing.timeout_ms - silence_ms)
        done: dict[TopicPartition, OffsetAndMetadata] = {}
        if in_group:
            finish_join(consumer)
        try:
            polled = consumer.poll(max(wait, 1), max_records=printing.room())
        except Exception as error:  # noqa: BLE001 - kafka-python raises any error of its codecs
            passed = unreadable(error)
            if in_group:
                _commit(consumer, {passed: OffsetAndMetadata(position(consumer, passed), "", -1)})
            continue
        for partition, records in polled.items():
            last = None
            for record in records:
                if printing.is_enough:  # with a filter, more records are read than printed
                    break
                last = record
                if printing.matches is None or printing.matches(record, partition.partition):
                    printing.printed += 1
                    out.write(printing.piece(record, printing.printed))
            if last is not None:
                done[partition] = OffsetAndMetadata(last.offset + 1, "", last.leader_epoch)
        if done:
            out.flush()
            printing.last_answer = time.monotonic()
            if in_group:
                _commit(consumer, done)


def _unreadable(connection: Connection, consumer: Any, skip: bool, error: Exception) -> TopicPartition:
    """Skip the batch that made a poll fail, and return its partition.

    Raises ClickException if the batch must not be skipped. Raises `error` if no batch is the cause.
    """
    if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordError):
        raise error
    with connection.admin() as admin:
        for partition in sorted(consumer.assignment()):
            found = unreadable_at(admin, (partition.topic, partition.partition), position(consumer, partition))
            if found is None:
                continue
            if not skip:
                raise click.ClickException(f"{found}; --skip-corrupt continues after it, at {found.next_offset}")
            click.echo(f"kbroker: {found}; skipped up to {found.next_offset}", err=True)
            forget_fetched(consumer)
            consumer.seek(partition, found.next_offset)
            return partition
    raise click.ClickException(f"a record cannot be read: {error}") from error


def _commit(consumer: Any, done: dict[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit the printed records. If this member is no longer in the group, another member prints them again."""
    try:
        consumer.commit(done, timeout_ms=10_000)
    except (CommitFailedError, RebalanceInProgressError):
        click.echo("kbroker: the group has rebalanced; some records may be printed again", err=True)


def _at_end(consumer: Any, printing: _Printing) -> bool:
    if printing.is_enough:
        return True
    if not printing.until_end or not printing.assigned:
        return False
    assigned = consumer.assignment()
    new = [each for each in assigned if each not in printing.ends]
    if new:
        printing.ends.update(consumer.end_offsets(new))
    return all(position(consumer, each) >= printing.ends[each] for each in assigned)

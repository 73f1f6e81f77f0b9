"""`kbroker transaction`: list and describe transactions, and find and end hanging ones, in any Kafka cluster."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from kbroker.admin.connection import Connection
from kbroker.admin.placement import leaders
from kbroker.admin.transactions import (
    abort_at,
    described,
    hanging,
    listed,
    producers,
    terminated,
)
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Column, Facts, Output, Table, Verbs, output_option
from kbroker.protocol.messages.transactions import ProducerState, TransactionState

_MINUTE_MS = 60_000


@click.group("transaction", cls=Verbs)
def command() -> None:
    """List and describe transactions, find those that hang, and end them."""


@command.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="List only transactions in this state, for example Ongoing; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=int,
    multiple=True,
    help="List only transactions of this producer id; repeatable.",
)
@click.option(
    "--duration-filter",
    type=click.IntRange(0),
    default=None,
    metavar="MS",
    help="List only transactions that began more than MS ago.",
)
@click.option(
    "--transactional-id-pattern", "pattern", metavar="REGEX", help="List only transactional ids that match as a whole."
)
@output_option
@client_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_filter: int | None,
    pattern: str | None,
    output: Output,
    connection: Connection,
) -> None:
    """List transactional ids with their state."""
    longer_than = -1 if duration_filter is None else duration_filter
    with connection.admin() as admin:
        found = listed(admin, states, producer_ids, longer_than, pattern)
    rows = [asdict(each) for each in found]
    output.rows(rows, "transactional id", "coordinator", "producer id", "state")


@command.command("describe")
@click.argument("transactional_id")
@output_option
@client_options
def describe(transactional_id: str, output: Output, connection: Connection) -> None:
    """Describe a transactional id: its state, its start and its partitions."""
    with connection.admin() as admin:
        coordinator, state = _described(admin, transactional_id)
    facts: dict[str, Any] = {
        "transactional_id": state.transactional_id,
        "coordinator": coordinator,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "state": state.transaction_state,
        "timeout_ms": state.transaction_timeout_ms,
        "start_ms": state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        "partitions": [
            {"topic": topic.topic, "partition": index} for topic in state.topics for index in sorted(topic.partitions)
        ],
    }
    shown = {**facts, "start_ms": _since(facts["start_ms"])}
    pairs = [(name.removesuffix("_ms").replace("_", " "), shown[name]) for name in shown if name != "partitions"]
    output.show(facts, Facts(pairs), Table(facts["partitions"], ["topic", "partition"], even_empty=False))


@command.command("producers")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(0))
@click.option("--broker", type=int, metavar="ID", help="Ask this broker instead of the leader.")
@output_option
@client_options
def list_producers(topic: str, partition: int, broker: int | None, output: Output, connection: Connection) -> None:
    """List the producers that a partition knows, and their open transactions in it."""
    with connection.admin() as admin:
        where = leaders(admin, topic, partition)
        ((_, found),) = producers(admin, where[topic, partition] if broker is None else broker, where)
    _print_producers([([], each) for each in found], [], output)


@command.command("hanging")
@click.option("--topic", metavar="TOPIC", help="Search only this topic.")
@click.option("--partition", type=click.IntRange(0), help="Search only this partition of --topic.")
@click.option("--broker", type=int, metavar="ID", help="Search only partitions that this broker leads.")
@click.option(
    "--max-transaction-timeout",
    type=click.FloatRange(0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Leave out producers that wrote within this number of minutes.",
)
@output_option
@client_options
def find_hanging(
    topic: str | None,
    partition: int | None,
    broker: int | None,
    max_transaction_timeout: float,
    output: Output,
    connection: Connection,
) -> None:
    """Find transactions that are open in partitions but unknown to every coordinator, so that they never end.

    Readers of committed records cannot read past the first such transaction. `kbroker transaction abort` ends one.
    """
    if partition is not None and topic is None:
        raise click.UsageError("--partition needs --topic")
    with connection.admin() as admin:
        where = leaders(admin, topic, partition)
        if broker is not None:
            where = {key: leader for key, leader in where.items() if leader == broker}
        found = hanging(admin, where, int(max_transaction_timeout * _MINUTE_MS))
    rows = [([each.topic, each.partition], each.producer) for each in found]
    _print_producers(rows, ["topic", "partition"], output)


@command.command("abort")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("partition", type=click.IntRange(0))
@click.option(
    "--start-offset",
    type=click.IntRange(0),
    required=True,
    help="The offset at which the transaction begins in the partition.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Abort also a transaction that a coordinator knows. Its other partitions do not change.",
)
@client_options
def abort(topic: str, partition: int, start_offset: int, force: bool, connection: Connection) -> None:
    """Abort a hanging transaction in a partition: the leader writes the marker that no coordinator writes."""
    with connection.admin() as admin:
        producer = abort_at(admin, (topic, partition), start_offset, force=force)
    click.echo(f"{topic}-{partition}: what producer {producer.producer_id} began at offset {start_offset} is aborted")


@command.command("terminate")
@click.argument("transactional_id")
@client_options
def terminate(transactional_id: str, connection: Connection) -> None:
    """Abort the open transaction of a transactional id, and fence its producer: its next request fails."""
    with connection.admin() as admin:
        _, state = _described(admin, transactional_id)
        terminated(admin, state)
    click.echo(f"{transactional_id}: producer {state.producer_id} of epoch {state.producer_epoch} is fenced")


def _described(admin: Any, transactional_id: str) -> tuple[int, TransactionState]:
    found = described(admin, transactional_id)
    if found is None:
        raise click.ClickException(f"no coordinator knows a transactional id {transactional_id}")
    return found


def _print_producers(rows: list[tuple[list[Any], ProducerState]], before: list[str], output: Output) -> None:
    """Print a row for each producer; the columns `before` come first."""
    names = [*before, "producer_id", "producer_epoch", "coordinator_epoch", "start_offset", "last_ms", "last_sequence"]
    values = [
        [
            *place,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch if each.coordinator_epoch >= 0 else None,
            each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
            each.last_timestamp if each.last_timestamp >= 0 else None,
            each.last_sequence,
        ]
        for place, each in rows
    ]
    last = Column("last", lambda row: _since(row["last_ms"]))
    columns = [last if name == "last_ms" else name.replace("_", " ") for name in names]
    output.rows([dict(zip(names, row, strict=True)) for row in values], *columns)


def _since(timestamp_ms: int | None) -> str | None:
    """Return the text of a time and of the period since then."""
    if timestamp_ms is None:
        return None
    when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}Z ({max(int(time.time() - timestamp_ms / 1000), 0)} s ago)"

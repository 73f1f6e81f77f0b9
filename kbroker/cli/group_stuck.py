"""`kbroker group stuck` and `kbroker group skip`: records that groups do not get past.

Owns the verbs; kbroker.admin.stuck_records finds the records, and skips one.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import WrongInput
from kbroker.admin.fetching import Found
from kbroker.admin.group_offsets import named_partitions
from kbroker.admin.partition_reader import PartitionReader
from kbroker.admin.stuck_records import StuckRecord, execute_skip, plan_skip, record_at, stuck_records
from kbroker.cli.client import client_options, ending_at_signals
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.log_output import one_line
from kbroker.cli.output import Column, Facts, Output, Part, output_option, time_text
from kbroker.cli.record_format import json_bytes

_CAUSES: Final = {
    "left": "{} owners left",
    "read again": "read again",
    "delivered again": "{} deliveries",
}


@click.command("stuck")
@click.argument("names", nargs=-1, metavar="[GROUP]...", shell_complete=complete_groups)
@click.option("--records", is_flag=True, help="Also show the key, value and headers of each record.")
@output_option
@client_options
def stuck(names: tuple[str, ...], records: bool, output: Output, connection: Connection) -> None:
    """List the records that groups do not get past.

    The broker reports a record if three members in turn owned its partition and left without a commit, if a member
    fetches the record again and again, or if a share group has delivered it three times. Apache Kafka reports none.
    """
    with ending_at_signals(), connection.admin() as admin:
        found = stuck_records(admin, names)
        reader = PartitionReader(admin)
        rows = [_document(each, record_at(reader, each) if records else None, records) for each in found]
    if records:
        output.show(rows, *(_facts(each) for each in rows))
        return
    output.rows(
        rows,
        "group",
        "topic",
        "partition",
        "offset",
        Column("because", lambda row: _CAUSES.get(row["cause"], row["cause"]).format(row["times"])),
        Column("since", lambda row: time_text(row["since_ms"])),
    )


def _document(stuck: StuckRecord, record: Found | None, with_record: bool) -> dict[str, Any]:
    data = asdict(stuck)
    if not with_record:
        return data
    if record is None:
        return {**data, "record": None}
    headers = [{"key": name, **json_bytes("value", value)} for name, value in record.headers]
    return {
        **data,
        "record": {**json_bytes("key", record.key), **json_bytes("value", record.value), "headers": headers},
    }


def _facts(row: dict[str, Any]) -> Part:
    pairs: list[tuple[str, object]] = [
        ("group", row["group"]),
        ("record", f"{row['topic']}-{row['partition']}, offset {row['offset']}"),
        ("because", _CAUSES.get(row["cause"], row["cause"]).format(row["times"])),
        ("since", time_text(row["since_ms"])),
    ]
    record = row["record"]
    if record is None:
        pairs.append(("value", "the record is gone"))
    else:
        pairs += [(name, value) for name, value in record.items() if name != "headers"]
        for each in record["headers"]:
            pairs += [(f"header {each['key']}", value) for name, value in each.items() if name != "key"]
    return Facts([(one_line(name), one_line(value) if isinstance(value, str) else value) for name, value in pairs])


@click.command("skip")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.option("--at", "place", metavar="TOPIC:P", help="The partition, if the group is stuck in several.")
@click.option(
    "--to-deadletter",
    "to",
    metavar="TOPIC",
    help="Copy the record to this topic first.",
    shell_complete=complete_topics,
)
@click.option("--drop", is_flag=True, help="Skip the record without a copy.")
@click.option("--execute", is_flag=True, help="Skip the record. Without this option, only show the effect.")
@client_options
def skip(name: str, place: str | None, to: str | None, drop: bool, execute: bool, connection: Connection) -> None:
    """Let a group skip the record that it does not get past.

    The record is copied to a dead letter topic, and the offset after it is committed, in one transaction. The group may
    have members: the next owner of the partition begins after the record.
    """
    if (to is not None) == drop:
        raise WrongInput("give either --to-deadletter TOPIC or --drop")
    with ending_at_signals(), connection.admin() as admin:
        chosen = [] if place is None else named_partitions(admin, [place])
        if len(chosen) > 1:
            raise WrongInput(f"--at names {len(chosen)} partitions; it takes one, as {chosen[0].topic}:0")
        at = (chosen[0].topic, chosen[0].partition) if chosen else None
        plan = plan_skip(admin, name, at, to, drop=drop)
        if execute:
            execute_skip(connection, admin, plan)
    behind = plan.record.offset + 1
    if not execute:
        goes = "is dropped" if plan.to is None else f"goes to {plan.to[0]}-{plan.to[1]}"
        click.echo(f"{plan.stuck.place}: {goes}; group {name} goes on at {behind}")
        click.echo("nothing was changed; add --execute to do it", err=True)
        return
    went = "was skipped without a copy" if plan.to is None else f"was copied to {plan.to[0]}-{plan.to[1]}"
    click.echo(f"{plan.stuck.place}: {went}; group {name} is at {behind} now")
    if plan.stuck.has_running_reader:
        click.echo("restart the member that reads the record: it keeps its own position", err=True)

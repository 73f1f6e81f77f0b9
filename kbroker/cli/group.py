"""`kbroker group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from kafka.structs import TopicPartition

from kbroker.admin.connection import Connection
from kbroker.admin.errors import Failures
from kbroker.admin.group_offsets import (
    WITHOUT_MEMBERS,
    Target,
    committed_offsets,
    named_partitions,
    new_offsets,
    set_offsets,
)
from kbroker.admin.group_offsets import delete_offsets as delete_offsets_of
from kbroker.admin.groups import STATES, delete_groups, described_group, group_of, listed_groups
from kbroker.cli.client import client_options
from kbroker.cli.option_types import Ago, Moment, OffsetsInFile
from kbroker.cli.output import json_option, print_facts, print_json, print_table


@click.group("group")
def command() -> None:
    """List, describe, reset and delete consumer groups."""


@command.command("list")
@click.option("--state", "states", type=click.Choice(STATES, case_sensitive=False), multiple=True, help="Only these.")
@json_option
@client_options
def list_groups(states: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List groups."""
    with connection.admin() as admin:
        found = listed_groups(admin, states)
    if as_json:
        print_json(list(found.values()))
    else:
        print_table(["group", "state", "type", "protocol"], [list(group.values()) for group in found.values()])


# -- describe -----------------------------------------------------------------------------------------------------


@command.command("describe", short_help="Describe groups, their members and offsets.")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@json_option
@client_options
def describe(names: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Describe groups: their members, and how far each partition is read."""
    missing = []
    found = []
    with connection.admin() as admin:
        for name in names:
            group = described_group(admin, name)
            if group is None:
                missing.append(name)
            else:
                found.append(group)
    if as_json:
        print_json(found)
    else:
        for index, group in enumerate(found):
            if index:
                click.echo()
            _print_group(group)
    if missing:
        raise Failures([f"group {name} does not exist" for name in missing])


def _print_group(group: Mapping[str, Any]) -> None:
    members = group["members"]
    lags = [row["lag"] for row in group["partitions"] if row["lag"] is not None]
    print_facts(
        [
            ("group", group["group"]),
            ("state", group["state"]),
            ("type", group["type"]),
            ("protocol", group["protocol"]),
            ("assignor", group["assignor"]),
            ("members", None if members is None else len(members)),
            ("lag", sum(lags)),
        ]
    )
    if group["partitions"]:
        click.echo()
        print_table(
            ["topic", "partition", "current-offset", "log-end-offset", "lag", "member-id"],
            [list(row.values()) for row in group["partitions"]],
        )
    if members:
        click.echo()
        print_table(
            ["member-id", "instance-id", "client-id", "host", "partitions"],
            [
                [m["member_id"], m["instance_id"], m["client_id"], m["host"], len(m["partitions"])]
                for m in sorted(members, key=lambda m: str(m["member_id"]))
            ],
        )


# -- reset --------------------------------------------------------------------------------------------------------


@command.command("reset")
@click.argument("name", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,...]", help="A topic, or some of its partitions.")
@click.option("--all-topics", is_flag=True, help="Every partition for which the group has committed an offset.")
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="Behind the newest record.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To an offset.")
@click.option("--to-datetime", type=Moment(), metavar="ISO", help="To the first record that is not older.")
@click.option("--by-duration", type=Ago(), metavar="ISO", help="The same, so long ago: P1DT2H30M.")
@click.option("--shift-by", type=int, metavar="N", help="By N records, back if negative.")
@click.option("--to-current", is_flag=True, help="To what is committed, where the partition still has that.")
@click.option(
    "--from-file", type=OffsetsInFile(), metavar="FILE", help="To those of a file of lines topic,partition,offset."
)
@click.option("--execute", is_flag=True, help="Do it; without this, only show what would change.")
@json_option
@client_options
def reset(
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    by_duration: int | None,
    shift_by: int | None,
    to_current: bool,
    from_file: Mapping[TopicPartition, int] | None,
    execute: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Move the committed offsets of a group that has no members.

    Offsets beyond what a partition holds become its first or its last.
    """
    if by_duration is not None and to_datetime is not None:
        raise click.UsageError("--by-duration and --to-datetime exclude each other")
    time_ms = by_duration if to_datetime is None else to_datetime
    target = Target(to_earliest, to_latest, to_offset, time_ms, shift_by, to_current, from_file)
    if not target.is_one:
        raise click.UsageError(
            "choose one of --to-earliest --to-latest --to-current --to-offset --to-datetime --by-duration"
            " --shift-by --from-file"
        )
    if from_file is not None and (topics or all_topics):
        raise click.UsageError("--from-file says which partitions, not --topic or --all-topics")
    if from_file is None and bool(topics) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    with connection.admin() as admin:
        group = group_of(admin, name)
        state = None if group is None else group["state"]
        if state not in WITHOUT_MEMBERS:
            raise click.ClickException(f"group {name} has members (its state is {state}); stop them first")
        committed = {} if group is None else committed_offsets(admin, name)
        if from_file is None:
            partitions = sorted(committed) if all_topics else named_partitions(admin, topics)
        else:
            partitions = sorted(from_file)
        new = new_offsets(admin, partitions, committed, target)
        if execute:
            set_offsets(admin, name, new)
    rows = [
        {
            "group": name,
            "topic": each.topic,
            "partition": each.partition,
            "old_offset": committed.get(each),
            "new_offset": new[each],
        }
        for each in partitions
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(["group", "topic", "partition", "old-offset", "new-offset"], [list(row.values()) for row in rows])
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


@command.command("delete-offsets", short_help="Delete what a group has committed for topics.")
@click.argument("name", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:P,...]", help="Of these; repeatable.")
@client_options
def delete_offsets(name: str, topics: tuple[str, ...], connection: Connection) -> None:
    """Delete committed offsets of topics that no member of the group reads."""
    with connection.admin() as admin:
        partitions = named_partitions(admin, topics)
        delete_offsets_of(admin, name, partitions)
    click.echo(f"{name}: without offsets of {', '.join(sorted({each.topic for each in partitions}))}")


# -- delete -------------------------------------------------------------------------------------------------------


@command.command("delete", short_help="Delete groups that have no members.")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@client_options
def delete(names: tuple[str, ...], connection: Connection) -> None:
    """Delete groups that have no members, with their committed offsets."""
    with connection.admin() as admin:
        results = delete_groups(admin, names)
    for name, failure in results.items():
        if failure is None:
            click.echo(f"deleted {name}")
    failures = [each for each in results.values() if each is not None]
    if failures:
        raise Failures(failures)

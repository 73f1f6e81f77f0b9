"""`kbroker group reset`: set the offsets of groups without members.

Owns the verb; kbroker.admin.group_offsets decides the new offsets.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from typing import Any

import click
from kafka.structs import TopicPartition

from kbroker.admin.connection import Connection, patience
from kbroker.admin.errors import AdminError, WrongInput, raise_any
from kbroker.admin.group_offsets import (
    WITHOUT_MEMBERS,
    Target,
    named_partitions,
    new_offsets,
    offsets_of,
    set_offsets,
)
from kbroker.admin.groups import group_of, listed_groups
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_groups, complete_topics
from kbroker.cli.option_types import Ago, Moment, OffsetsInFile
from kbroker.cli.output import Output, output_option


@click.command("reset")
@click.argument("names", nargs=-1, metavar="GROUP...", shell_complete=complete_groups)
@click.option("--all-groups", is_flag=True, help="Reset all groups.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:P,...]",
    help="Reset a topic, or some of its partitions; repeatable.",
    shell_complete=complete_topics,
)
@click.option("--all-topics", is_flag=True, help="Reset each partition with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="Move to the oldest record.")
@click.option("--to-latest", is_flag=True, help="Move behind the newest record.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Move to this offset.")
@click.option(
    "--to-datetime", type=Moment(), metavar="ISO", help="Move to the first record with this timestamp or a later one."
)
@click.option(
    "--by-duration",
    type=Ago(),
    metavar="ISO",
    help="Move to the first record that is at most this old, for example P1DT2H30M.",
)
@click.option("--shift-by", type=int, metavar="N", help="Move by N records; a negative N moves back.")
@click.option("--to-current", is_flag=True, help="Keep the committed offset, limited to the offsets of the partition.")
@click.option(
    "--from-file",
    type=OffsetsInFile(),
    metavar="FILE",
    help="Move to the offsets of a file with lines topic,partition,offset.",
)
@click.option("--execute", is_flag=True, help="Change the offsets. Without this option, only show the new offsets.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets; this is the default.")
@click.option("--export", is_flag=True, help="Print the offsets as lines topic,partition,offset for --from-file.")
@click.option("--timeout", type=click.IntRange(0), metavar="MS", help="The maximum time to wait for a coordinator.")
@output_option
@client_options
def reset(
    names: tuple[str, ...],
    all_groups: bool,
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
    dry_run: bool,
    export: bool,
    timeout: int | None,
    output: Output,
    connection: Connection,
) -> None:
    """Move the committed offsets of groups that have no members, or the start offsets of share groups.

    An offset outside of a partition is replaced by the partition's first or end offset.
    """
    if bool(names) == all_groups:
        raise click.UsageError("give either the names of groups or --all-groups")
    if execute and dry_run:
        raise click.UsageError("--execute and --dry-run exclude each other")
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
        raise click.UsageError("--from-file names the partitions: not with --topic or --all-topics")
    if from_file is None and bool(topics) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    plans, failures = [], []
    with patience(None if timeout is None else timeout / 1000), connection.admin() as admin:
        listed = listed_groups(admin) if all_groups or len(names) > 1 else {}
        for name in listed if all_groups else names:
            try:
                kind = listed.get(name, {}).get("type")
                plans += _reset(admin, name, kind, topics, target, execute=execute)
            except WrongInput:
                raise
            except AdminError as error:
                failures.append(str(error))
    if export:
        _export(plans, with_groups=len(names) != 1)
    elif plans or output.is_document or not failures:
        output.rows(plans, "group", "topic", "partition", "old-offset", "new-offset")
    raise_any(failures)
    if not execute:
        click.echo("nothing was changed; add --execute to do it", err=True)


def _reset(
    admin: Any, name: str, kind: str | None, topics: tuple[str, ...], target: Target, *, execute: bool
) -> list[dict[str, Any]]:
    """Return the changes of one group's reset, and make them with `execute`. Raises AdminError."""
    group = group_of(admin, name, kind)
    state = None if group is None else group["state"]
    if state not in WITHOUT_MEMBERS:
        raise AdminError(
            f"group {name} has members (its state is {state}); stop them first; "
            "a member that ended without leaving counts until its session expires (45 s by default):"
            f" `kbroker group describe {name} --members` shows where they run"
        )
    kind = None if group is None else group["type"]
    committed = {} if group is None else offsets_of(admin, name, kind)
    if target.listed is not None:
        partitions = sorted(target.listed)
    else:
        partitions = named_partitions(admin, topics) if topics else sorted(committed)
    new = new_offsets(admin, partitions, committed, target)
    if execute:
        set_offsets(admin, name, kind, new)
    return [
        {
            "group": name,
            "topic": each.topic,
            "partition": each.partition,
            "old_offset": committed.get(each),
            "new_offset": new[each],
        }
        for each in partitions
    ]


def _export(rows: list[dict[str, Any]], *, with_groups: bool) -> None:
    """Print lines in the export format of kafka-consumer-groups; with several groups, each line names its group."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        place = [row["topic"], row["partition"], row["new_offset"]]
        lines.writerow([row["group"], *place] if with_groups else place)

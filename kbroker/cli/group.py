"""`kbroker group`: list, describe and delete groups of every type, with their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from kbroker.admin.connection import Connection, patience
from kbroker.admin.did_you_mean import no_such_group
from kbroker.admin.errors import raise_any
from kbroker.admin.groups import STATES, TYPES, described_group, listed_groups
from kbroker.cli.changes import add_changes
from kbroker.cli.client import client_options
from kbroker.cli.completion import complete_groups
from kbroker.cli.group_reset import reset
from kbroker.cli.group_stuck import skip, stuck
from kbroker.cli.option_types import compiled, whole_match
from kbroker.cli.output import Column, Facts, Output, Part, Table, Verbs, output_option, wide


@click.group("group", cls=Verbs)
def command() -> None:
    """List, describe, reset and delete groups of every type."""


@command.command("list")
@click.option("--state", "states", type=click.Choice(STATES, case_sensitive=False), multiple=True, help="Only these.")
@click.option("--type", "types", type=click.Choice(TYPES, case_sensitive=False), multiple=True, help="Only these.")
@click.option("--protocol", metavar="NAME", help="Only groups of this protocol, such as consumer or connect.")
@click.option("--pattern", metavar="REGEX", help="Only groups whose whole name matches.")
@output_option
@client_options
def list_groups(
    states: tuple[str, ...],
    types: tuple[str, ...],
    protocol: str | None,
    pattern: str | None,
    output: Output,
    connection: Connection,
) -> None:
    """List groups of every type."""
    matches = whole_match(pattern)
    with connection.admin() as admin:
        found = [
            group
            for name, group in listed_groups(admin, states, types).items()
            if matches(name) and protocol in (None, group["protocol"])
        ]
    output.rows(found, "group", "state", "type", "protocol")


# -- describe -----------------------------------------------------------------------------------------------------


@command.command("describe", short_help="Describe groups, their members and offsets.")
@click.argument("names", nargs=-1, metavar="GROUP...", shell_complete=complete_groups)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option(
    "--state", "with_state", is_flag=True, help="Only the state; can be combined with --members and --offsets."
)
@click.option("--members", "with_members", is_flag=True, help="Only the members.")
@click.option("--offsets", "with_offsets", is_flag=True, help="Only the offsets.")
@click.option("--verbose", is_flag=True, help="The same as -o wide.")
@click.option("--timeout", type=click.IntRange(0), metavar="MS", help="The maximum time to wait for a coordinator.")
@output_option
@client_options
def describe(
    names: tuple[str, ...],
    all_groups: bool,
    with_state: bool,
    with_members: bool,
    with_offsets: bool,
    verbose: bool,
    timeout: int | None,
    output: Output,
    connection: Connection,
) -> None:
    """Describe groups: their members, and the offset in each partition.

    For a share group these are the start offsets. A streams group also has a topology, and tasks of its members.
    """
    if bool(names) == all_groups:
        raise click.UsageError("give either the names of groups or --all-groups")
    output = Output("wide") if verbose and not output.is_document else output
    wanted = {"state": with_state, "members": with_members, "offsets": with_offsets}
    chosen = [each for each, shown in wanted.items() if shown] or list(wanted)
    missing, found = [], []
    with patience(None if timeout is None else timeout / 1000), connection.admin() as admin:
        listed = listed_groups(admin) if all_groups or len(names) > 1 else {}
        for name in listed if all_groups else names:
            group = described_group(admin, name, listed.get(name, {}).get("type"))
            if group is not None:
                found.append(group)
            elif not all_groups:
                missing.append(no_such_group(admin, name))
    output.show([_document(each, chosen) for each in found], *(part for each in found for part in _parts(each, chosen)))
    raise_any(missing)


def _document(group: Mapping[str, Any], chosen: Sequence[str]) -> dict[str, Any]:
    left_out = {"members": "members", "offsets": "partitions"}
    return {key: value for key, value in group.items() if key not in left_out.values() or _shows(key, chosen)}


def _shows(key: str, chosen: Sequence[str]) -> bool:
    return {"members": "members", "partitions": "offsets"}[key] in chosen


def _parts(group: Mapping[str, Any], chosen: Sequence[str]) -> list[Part]:
    members, is_share = group["members"], group["type"] == "share"
    lags = [row["lag"] for row in group["partitions"] if row["lag"] is not None]
    facts = [
        ("group", group["group"]),
        ("state", group["state"]),
        ("type", group["type"]),
        ("protocol", group["protocol"]),
        ("assignor", group["assignor"]),
        ("members", None if members is None else len(members)),
        ("lag", sum(lags)),
    ]
    more = [
        ("coordinator", group["coordinator"]),
        ("epoch", group["epoch"]),
        ("target epoch", group["target_epoch"]),
    ]
    topology = group.get("topology", {})
    if topology:
        facts.append(("topology epoch", topology["epoch"]))
    found: list[Part] = [Facts(facts if "state" in chosen else facts[:1], more if "state" in chosen else ())]
    if "offsets" in chosen:
        found.append(Table(group["partitions"], _START_OFFSETS if is_share else _OFFSETS, even_empty=False))
    if "state" in chosen and topology:
        found.append(Table(topology["subtopologies"], _SUBTOPOLOGIES, even_empty=False))
    if "members" in chosen and members:
        columns = (*_MEMBERS, *(_TASKS if topology else ()))
        found.append(Table(sorted(members, key=lambda member: str(member["member_id"])), columns))
    return found


_OFFSETS: Final[Sequence[Column | str]] = (
    "topic",
    "partition",
    "current-offset",
    "log-end-offset",
    "lag",
    "member-id",
    wide("instance-id"),
    wide("client-id"),
    wide("host"),
)


_START_OFFSETS: Final[Sequence[Column | str]] = ("topic", "partition", "start-offset", "lag")


def _names(header: str) -> Column:
    """Return a column with names, separated by commas."""
    return Column(header, lambda row: ", ".join(row[header.replace(" ", "_")]) or None)


_SUBTOPOLOGIES: Final[Sequence[Column | str]] = (
    Column("subtopology", "id"),
    _names("source topics"),
    _names("repartition source topics"),
    _names("repartition sink topics"),
    _names("changelog topics"),
)


def _tasks(kind: str) -> Column:
    """Return a column with a member's tasks of a kind, like 0_1 for partition 1 of subtopology 0."""
    return Column(kind, lambda member: ", ".join(member["tasks"][kind]) or None)


_TASKS: Final[Sequence[Column | str]] = (
    _tasks("active"),
    _tasks("standby"),
    _tasks("warmup"),
    wide("topology-epoch"),
    wide("process-id"),
)


def _places(places: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the text of partitions: orders(0,1), payments(0)."""
    topics: dict[str, list[str]] = {}
    for each in places or ():
        topics.setdefault(each["topic"], []).append(str(each["partition"]))
    return ", ".join(f"{topic}({','.join(numbers)})" for topic, numbers in topics.items()) or None


_MEMBERS: Final[Sequence[Column | str]] = (
    "member-id",
    "instance-id",
    "client-id",
    "host",
    Column("partitions", lambda member: len(member["partitions"])),
    wide("epoch"),
    wide("assignment", lambda member: _places(member["partitions"])),
    wide("target assignment", lambda member: _places(member["target_partitions"])),
)


command.add_command(reset)
command.add_command(stuck)
command.add_command(skip)
add_changes(command, "group")


# -- patterns -----------------------------------------------------------------------------------------------------


@command.command("validate-regex", short_help="Check that consumers may subscribe to a pattern.")
@click.argument("pattern", metavar="REGEX")
def validate_regex(pattern: str) -> None:
    """Check that consumers may subscribe to a pattern.

    With KIP-848's protocol a pattern is an RE2 expression, which the broker compiles.
    """
    compiled(pattern, "REGEX")
    click.echo(f"{pattern} is a regular expression of RE2")

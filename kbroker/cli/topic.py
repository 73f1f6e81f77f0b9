"""`kbroker topic`: create, list, describe, alter and delete topics; elect leaders and move replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from kbroker.admin.connection import Connection, patiently
from kbroker.admin.did_you_mean import no_such_topic, no_such_topic_config
from kbroker.admin.errors import raise_any
from kbroker.admin.partition_offsets import SPECIAL, offsets_at, parse_time
from kbroker.admin.placement import elect_leaders, leaders
from kbroker.admin.reassignments import parse_partitions
from kbroker.admin.topic_details import AILMENTS, ailing, with_details
from kbroker.admin.topic_tiers import tiered_topics, topic_tiers
from kbroker.admin.topics import (
    EXISTS,
    INVALID_CONFIG,
    add_partitions,
    create_topics,
    describe_topic,
    existing_topics,
    id_text,
    listed_topics,
    set_topic_configs,
)
from kbroker.cli.changes import add_changes
from kbroker.cli.client import client_options, warn
from kbroker.cli.completion import complete_topics
from kbroker.cli.option_types import ReplicaAssignment, whole_match
from kbroker.cli.output import Column, Facts, Output, Part, Table, Verbs, output_option, wide
from kbroker.cli.reassign import reassign

_TIME_HELP = f"The time: {', '.join(SPECIAL)}, ms since 1970, or 2026-01-31T12:00:00Z."


@click.group("topic", cls=Verbs)
def command() -> None:
    """Create, list, describe, alter and delete topics."""


def _assignments(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"--config takes KEY=VALUE, not {pair!r}")
        found[key.strip()] = value.strip()
    return found


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1),
    help="The number of partitions; without this option, the broker's default.",
)
@click.option(
    "-r",
    "--replicas",
    "--replication-factor",
    "replicas",
    type=click.IntRange(1),
    help="The number of replicas of each partition; without this option, the broker's default.",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a config of the topic.")
@click.option(
    "--replica-assignment",
    type=ReplicaAssignment(),
    help="The brokers of each partition, for example 1:2,2:3 for two partitions.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
@click.option("--dry-run", is_flag=True, help="Check the request without creating anything.")
@client_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    replica_assignment: Sequence[Sequence[int]] | None,
    if_not_exists: bool,
    dry_run: bool,
    connection: Connection,
) -> None:
    """Create topics."""
    if replica_assignment is not None and (partitions is not None or replicas is not None):
        raise click.UsageError("--replica-assignment also sets both numbers: omit --partitions and --replicas")
    set_configs = _assignments(configs)
    failures = []
    with connection.admin() as admin:
        refusals = create_topics(
            admin,
            names,
            partitions or -1,
            replicas or -1,
            set_configs,
            assignment=replica_assignment or (),
            dry_run=dry_run,
        )
        for name, refusal in refusals.items():
            if refusal is None and dry_run:
                click.echo(f"{name} could be created")
            elif refusal is None:
                click.echo(f"created {name}")
            elif if_not_exists and refusal.name == EXISTS:
                click.echo(f"{name} exists")
            else:
                hint = no_such_topic_config(set_configs) if refusal.name == INVALID_CONFIG else ""
                failures.append(f"{refusal.text}{hint}")
    raise_any(failures)


@command.command("list")
@click.option("--pattern", metavar="REGEX", help="List only topics whose whole name matches.")
@click.option("--internal", is_flag=True, help="Also list the cluster's internal topics.")
@output_option
@client_options
def list_topics(pattern: str | None, internal: bool, output: Output, connection: Connection) -> None:
    """List topics."""
    with connection.admin() as admin:
        matches = whole_match(pattern)
        found = [topic for topic in listed_topics(admin) if matches(topic["name"])]
        found = [topic for topic in found if internal or not topic["internal"]]
        if output.is_whole:
            found = with_details(admin, found)
    in_sync, policy = wide("min isr", "min_insync_replicas"), wide("cleanup policy")
    output.rows(found, "name", "partitions", "replicas", in_sync, policy, wide("retention ms"), wide("bytes"))


@command.command("describe", short_help="Describe topics and their partitions.")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=complete_topics)
@click.option("--pattern", metavar="REGEX", help="Describe the topics whose whole name matches.")
@click.option("--topic-id", "ids", multiple=True, metavar="ID", help="Describe the topic with this id; repeatable.")
@click.option("--exclude-internal", is_flag=True, help="Leave out the cluster's internal topics.")
@click.option(
    "--under-replicated-partitions", is_flag=True, help="Show only partitions whose replicas are not all in sync."
)
@click.option("--unavailable-partitions", is_flag=True, help="Show only partitions without a leader.")
@click.option(
    "--under-min-isr-partitions",
    is_flag=True,
    help="Show only partitions with fewer in-sync replicas than min.insync.replicas.",
)
@click.option(
    "--at-min-isr-partitions",
    is_flag=True,
    help="Show only partitions with exactly min.insync.replicas in-sync replicas.",
)
@click.option("--topics-with-overrides", is_flag=True, help="Show only topics with configs of their own.")
@output_option
@client_options
def describe(
    names: tuple[str, ...],
    pattern: str | None,
    ids: tuple[str, ...],
    exclude_internal: bool,
    topics_with_overrides: bool,
    output: Output,
    connection: Connection,
    **ailments: bool,
) -> None:
    """Describe topics: partitions with their offsets, and the configs that are set; without names, all topics."""
    if sum([bool(names), pattern is not None, bool(ids)]) > 1:
        raise click.UsageError("give exactly one of names, --pattern and --topic-id")
    wanted = [each for each in AILMENTS if ailments[each]]
    matches = whole_match(pattern)
    with connection.admin() as admin:
        known = patiently(partial(existing_topics, admin, names or None), reads=True)
        chosen = [
            topic
            for name, topic in known.items()
            if matches(name)
            and not (exclude_internal and topic["is_internal"])
            and (not ids or id_text(topic.get("topic_id")) in ids)
        ]
        chosen = ailing(admin, chosen, wanted, with_overrides=topics_with_overrides)
        described = {topic["name"]: describe_topic(admin, topic) for topic in chosen}
        missing = [no_such_topic(admin, name) for name in names if name not in known]
    missing += [f"no topic has the id {each}" for each in ids if each not in {t["id"] for t in described.values()}]
    order = names or sorted(described)
    found = [described[name] for name in order if name in described]
    output.show(found, *(part for topic in found for part in _parts(topic)))
    raise_any(missing)


@command.command("offsets", short_help="Show the offsets of partitions at a time.")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Show only this partition; repeatable.",
)
@click.option("--pattern", metavar="REGEX", help="Show topics whose whole name matches, instead of named topics.")
@click.option("--exclude-internal-topics", is_flag=True, help="Without names: leave out the cluster's internal topics.")
@click.option("--time", "when", metavar="TIME", default="latest", show_default=True, help=_TIME_HELP)
@output_option
@client_options
def offsets(
    names: tuple[str, ...],
    partitions: tuple[int, ...],
    pattern: str | None,
    exclude_internal_topics: bool,
    when: str,
    output: Output,
    connection: Connection,
) -> None:
    """Show the offsets of partitions: their end or start, or the first record that is not older than a time.

    Without names, shows all topics. A dash means that there is no such record, or that the offset is unknown.
    """
    if names and pattern is not None:
        raise click.UsageError("give either names or --pattern")
    special = SPECIAL.get(when)
    time_ms, at_least = (parse_time(when), 1) if special is None else special
    with connection.admin() as admin:
        matches, by_name = whole_match(pattern), bool(names)
        names = names or tuple(
            topic["name"]
            for topic in listed_topics(admin)
            if matches(topic["name"]) and not (exclude_internal_topics and topic["internal"])
        )
        led = {key: leader for name in names for key, leader in leaders(admin, name).items()}
        wanted = {key: leader for key, leader in led.items() if not partitions or key[1] in partitions}
        for name, index in ((name, index) for name in names for index in partitions):
            if by_name and (name, index) not in led:
                raise click.ClickException(f"topic {name} has no partition {index}")
        with_leaders = {key: leader for key, leader in wanted.items() if leader >= 0}
        found, refused = offsets_at(admin, with_leaders, time_ms, at_least)
    headers = ("topic", "partition", "offset", "timestamp")
    rows = [[name, index, *map(_there, found.get((name, index), (-1, -1)))] for name, index in sorted(wanted)]
    output.rows([dict(zip(headers, row, strict=True)) for row in rows], *headers)
    raise_any(refused)


@command.command("tiers", short_help="Show local and remote storage of topics.")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=complete_topics)
@output_option
@client_options
def tiers(names: tuple[str, ...], output: Output, connection: Connection) -> None:
    """Show the offsets and bytes of partitions on the leaders' disks and in remote storage.

    Without names, shows all topics with remote.storage.enable=true. Reads the topic __remote_log_metadata.
    """
    with connection.admin() as admin:
        names = names or tuple(tiered_topics(admin))
        if not names:
            warn("no topic that you can describe has remote.storage.enable=true")
        found = topic_tiers(admin, names)
    output.rows(
        [asdict(each) for each in found.partitions],
        "topic",
        "partition",
        "start",
        "local start",
        "latest tiered",
        "end",
        "local bytes",
        "remote bytes",
        Column("segments", "remote_segments"),
        wide("unfinished"),
    )
    raise_any(found.troubles)


def _there(number: int) -> int | None:
    return number if number >= 0 else None


def _parts(topic: dict[str, Any]) -> tuple[Part, Part]:
    configs = [f"{key}={value}" for key, value in topic["configs"].items()]
    facts: list[tuple[str, object]] = [
        ("topic", topic["name"]),
        ("id", topic["id"]),
        ("partitions", len(topic["partitions"])),
        ("replicas", max((len(p["replicas"]) for p in topic["partitions"]), default=0)),
    ]
    columns: list[Column | str] = [
        "partition",
        "leader",
        Column("replicas", lambda p: _nodes(p["replicas"])),
        Column("isr", lambda p: _nodes(p["isr"])),
        wide("not in sync", lambda p: _nodes([each for each in p["replicas"] if each not in p["isr"]]) or None),
        "earliest",
        "latest",
        wide("records", lambda p: None if None in (p["earliest"], p["latest"]) else p["latest"] - p["earliest"]),
    ]
    shown = [*facts, *(("config", each) for each in configs)]
    return Facts(shown, [("internal", "yes" if topic["internal"] else "no")]), Table(topic["partitions"], columns)


def _nodes(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


@command.command("alter")
@click.argument("name", shell_complete=complete_topics)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a config; repeatable.")
@click.option(
    "-d", "--delete-config", "deleted", multiple=True, metavar="KEY", help="Reset a config to its default; repeatable."
)
@click.option("-p", "--partitions", type=click.IntRange(1), help="The new number of partitions, which must be larger.")
@click.option(
    "--replica-assignment",
    type=ReplicaAssignment(),
    help="With --partitions: the brokers of all partitions, including the existing ones.",
)
@client_options
def alter(
    name: str,
    configs: tuple[str, ...],
    deleted: tuple[str, ...],
    partitions: int | None,
    replica_assignment: Sequence[Sequence[int]] | None,
    connection: Connection,
) -> None:
    """Change a topic's configs and its number of partitions."""
    changes: dict[str, str | None] = {**_assignments(configs), **dict.fromkeys(deleted)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --config, --delete-config or --partitions")
    if replica_assignment is not None and len(replica_assignment) != partitions:
        raise click.UsageError("--replica-assignment needs as many lists of brokers as --partitions says")
    with connection.admin() as admin:
        known = existing_topics(admin, (name,))
        if name not in known:
            raise click.ClickException(no_such_topic(admin, name))
        if changes:
            set_topic_configs(admin, name, changes)
        if partitions is not None:
            new = (replica_assignment or [])[len(known[name]["partitions"]) :]
            add_partitions(admin, name, partitions, new)
    click.echo(f"altered {name}")


add_changes(command, "topic")


@command.command("elect", short_help="Elect the preferred leaders.")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Elect only for this partition; repeatable.",
)
@click.option(
    "--json-file", type=click.File("rb"), help="A file of partitions, in the format of kafka-leader-election."
)
@click.option("--unclean", is_flag=True, help="If no in-sync replica is live, elect any replica. Records may be lost.")
@client_options
def elect(
    names: tuple[str, ...], partitions: tuple[int, ...], json_file: Any, unclean: bool, connection: Connection
) -> None:
    """Make the first replica of each partition the leader again; without names, for all topics."""
    if unclean and not names and json_file is None:
        raise click.UsageError("--unclean needs the names of the topics")
    if json_file is not None and (names or partitions):
        raise click.UsageError("--json-file names the partitions: not with names or --partition")
    if partitions and not names:
        raise click.UsageError("--partition needs the name of the topic")
    wanted: Sequence[str] | Mapping[str, Sequence[int]] = names
    if json_file is not None:
        wanted = parse_partitions(json_file.read())
    elif partitions:
        wanted = dict.fromkeys(names, partitions)
    with connection.admin() as admin:
        changed, failures = elect_leaders(admin, wanted, unclean=unclean)
    click.echo(f"{len(changed)} partitions have another leader")
    raise_any(failures)


command.add_command(reassign)

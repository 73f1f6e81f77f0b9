"""`kbroker topic`: create, list, describe, alter and delete topics; elect leaders and move replicas."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from kbroker.admin.connection import Connection, patiently
from kbroker.admin.errors import Failures
from kbroker.admin.partition_offsets import SPECIAL, offsets_at
from kbroker.admin.placement import leaders, move, moving, parse_replicas, partitions_of, wait_until_moved
from kbroker.admin.reading import parse_time
from kbroker.admin.told_everywhere import wait_for_deletion, wait_for_replicas, wait_for_topics
from kbroker.admin.topics import (
    EXISTS,
    UNKNOWN,
    add_partitions,
    create_topics,
    delete_topics,
    described_topics,
    elect_leaders,
    existing_topics,
    listed_topics,
    set_topic_configs,
)
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_facts, print_json, print_table

_TIME_HELP = f"{', '.join(SPECIAL)}, or ms since 1970, or 2026-01-31T12:00:00Z."


@click.group("topic")
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


def _report(failures: list[str]) -> None:
    if failures:
        raise Failures(failures)


@command.command("create")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partitions", type=click.IntRange(1), help="Number of partitions; the broker's default without.")
@click.option(
    "-r",
    "--replicas",
    "--replication-factor",
    "replicas",
    type=click.IntRange(1),
    help="Replicas of each; the broker's default without.",
)
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a config of the topic.")
@click.option("--if-not-exists", is_flag=True, help="A topic that exists is no failure.")
@client_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    connection: Connection,
) -> None:
    """Create topics."""
    set_configs = _assignments(configs)
    failures = []
    created = []
    with connection.admin() as admin:
        for name, refusal in create_topics(admin, names, partitions or -1, replicas or -1, set_configs).items():
            if refusal is None:
                created.append(name)
                click.echo(f"created {name}")
            elif if_not_exists and refusal[0] == EXISTS:
                click.echo(f"{name} exists")
            else:
                failures.append(f"cannot create {name}: {refusal[1]}")
        wait_for_topics(admin, created)
    _report(failures)


@command.command("list")
@click.option("--internal", is_flag=True, help="Also the cluster's own topics.")
@json_option
@client_options
def list_topics(internal: bool, as_json: bool, connection: Connection) -> None:
    """List topics."""
    with connection.admin() as admin:
        found = [topic for topic in listed_topics(admin) if internal or not topic["internal"]]
    if as_json:
        print_json(found)
    else:
        print_table(["name", "partitions", "replicas"], [[t["name"], t["partitions"], t["replicas"]] for t in found])


@command.command("describe", short_help="Describe topics and their partitions.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@client_options
def describe(names: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """Describe topics: partitions with their offsets, and the configs that are set."""
    with connection.admin() as admin:
        described = patiently(partial(described_topics, admin, names), reads=True)
    found = [described[name] for name in names if name in described]
    if as_json:
        print_json(found)
    else:
        for index, topic in enumerate(found):
            if index:
                click.echo()
            _print_topic(topic)
    _report([f"topic {name} does not exist" for name in names if name not in described])


@command.command("offsets", short_help="Show at which offsets partitions are at a time.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="Of this one only.")
@click.option("--time", "when", metavar="TIME", default="latest", show_default=True, help=_TIME_HELP)
@json_option
@client_options
def offsets(
    names: tuple[str, ...], partitions: tuple[int, ...], when: str, as_json: bool, connection: Connection
) -> None:
    """Show the offsets of partitions: where they end or begin, or the first record that is not older than a time.

    There may be none, which is a dash.
    """
    special = SPECIAL.get(when)
    time_ms, at_least = (parse_time(when), 1) if special is None else special
    with connection.admin() as admin:
        led = {key: leader for name in names for key, leader in leaders(admin, name).items()}
        wanted = {key: leader for key, leader in led.items() if not partitions or key[1] in partitions}
        for name, index in ((name, index) for name in names for index in partitions):
            if (name, index) not in led:
                raise click.ClickException(f"topic {name} has no partition {index}")
        found = offsets_at(admin, {key: leader for key, leader in wanted.items() if leader >= 0}, time_ms, at_least)
    rows = [[name, index, *map(_there, found.get((name, index), (-1, -1)))] for name, index in sorted(wanted)]
    headers = ["topic", "partition", "offset", "timestamp"]
    if as_json:
        print_json([dict(zip(headers, row, strict=True)) for row in rows])
    else:
        print_table(headers, rows)


def _there(number: int) -> int | None:
    return number if number >= 0 else None


def _print_topic(topic: dict[str, Any]) -> None:
    configs = [f"{key}={value}" for key, value in topic["configs"].items()]
    facts: list[tuple[str, object]] = [
        ("topic", topic["name"]),
        ("id", topic["id"]),
        ("partitions", len(topic["partitions"])),
        ("replicas", max((len(p["replicas"]) for p in topic["partitions"]), default=0)),
    ]
    print_facts([*facts, *(("config", each) for each in configs)])
    click.echo()
    print_table(
        ["partition", "leader", "replicas", "isr", "earliest", "latest"],
        [
            [p["partition"], p["leader"], _nodes(p["replicas"]), _nodes(p["isr"]), p["earliest"], p["latest"]]
            for p in topic["partitions"]
        ],
    )


def _nodes(nodes: list[int]) -> str:
    return ",".join(map(str, nodes))


@command.command("alter")
@click.argument("name")
@click.option("-c", "--config", "configs", multiple=True, metavar="KEY=VALUE", help="Set a config.")
@click.option("-d", "--delete-config", "deleted", multiple=True, metavar="KEY", help="Go back to a config's default.")
@click.option("-p", "--partitions", type=click.IntRange(1), help="The number of partitions to have; it only grows.")
@client_options
def alter(
    name: str, configs: tuple[str, ...], deleted: tuple[str, ...], partitions: int | None, connection: Connection
) -> None:
    """Change a topic's configs and its number of partitions."""
    changes: dict[str, str | None] = {**_assignments(configs), **dict.fromkeys(deleted)}
    if not changes and partitions is None:
        raise click.UsageError("nothing to change: give --config, --delete-config or --partitions")
    with connection.admin() as admin:
        if name not in existing_topics(admin, (name,)):
            raise click.ClickException(f"topic {name} does not exist")
        if changes:
            set_topic_configs(admin, name, changes)
        if partitions is not None:
            add_partitions(admin, name, partitions)
    click.echo(f"altered {name}")


@command.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="A topic that does not exist is no failure.")
@client_options
def delete(names: tuple[str, ...], if_exists: bool, connection: Connection) -> None:
    """Delete topics with everything in them."""
    failures, deleted = [], []
    with connection.admin() as admin:
        for name, refusal in delete_topics(admin, names).items():
            if refusal is None:
                deleted.append(name)
                click.echo(f"deleted {name}")
            elif refusal[0] != UNKNOWN:
                failures.append(f"cannot delete {name}: {refusal[1]}")
            elif not if_exists:
                failures.append(f"topic {name} does not exist")
        wait_for_deletion(admin, deleted)
    _report(failures)


@command.command("elect", short_help="Let first replicas lead again.")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--unclean", is_flag=True, help="Where nobody in sync lives, let any replica lead: records may be lost.")
@client_options
def elect(names: tuple[str, ...], unclean: bool, connection: Connection) -> None:
    """Let the first replica of each partition lead again; of all topics without names."""
    if unclean and not names:
        raise click.UsageError("--unclean takes the topics by name")
    with connection.admin() as admin:
        changed, failures = elect_leaders(admin, names, unclean=unclean)
    click.echo(f"{len(changed)} partitions have another leader")
    _report(failures)


@command.command("reassign", short_help="Move partitions to other replicas.")
@click.argument("name", required=False)
@click.option("-p", "--partition", "partition", type=click.IntRange(0), help="One partition; all of the topic without.")
@click.option("--to", "to", metavar="ID,ID...", help="The replicas to have, the preferred leader first.")
@click.option("--cancel", is_flag=True, help="Go back to the replicas from before.")
@click.option("--wait", is_flag=True, help="Return when they are moved.")
@client_options
def reassign(
    name: str | None, partition: int | None, to: str | None, cancel: bool, wait: bool, connection: Connection
) -> None:
    """Move partitions to other replicas; without --to and --cancel, list what is being moved."""
    if to is not None and cancel:
        raise click.UsageError("--to and --cancel exclude each other")
    if (to is not None or cancel) and name is None:
        raise click.UsageError("name the topic")
    with connection.admin() as admin:
        if to is None and not cancel:
            _print_moving(admin, name)
            return
        replicas = None if to is None else parse_replicas(to)
        keys = [key for key in _keys(admin, str(name)) if partition in (None, key[1])]
        if not keys:
            raise click.ClickException(f"topic {name} has no partition {partition}")
        taken = move(admin, dict.fromkeys(keys, replicas))
        if wait:
            wait_until_moved(admin, taken, lambda text: click.echo(text, err=True))
            wait_for_replicas(admin, dict.fromkeys(taken, replicas) if replicas else {})
    click.echo(f"{len(taken)} partitions {'go back' if cancel else 'were moved' if wait else 'are being moved'}")


def _keys(admin: Any, name: str) -> list[tuple[str, int]]:
    if name not in existing_topics(admin, (name,)):
        raise click.ClickException(f"topic {name} does not exist")
    return sorted(partitions_of(admin, [name]))


def _print_moving(admin: Any, name: str | None) -> None:
    rows = [
        [topic, index, *(_nodes(state[part]) for part in ("replicas", "adding_replicas", "removing_replicas"))]
        for (topic, index), state in sorted(moving(admin).items())
        if name in (None, topic)
    ]
    print_table(["topic", "partition", "replicas", "to come", "to go"], rows)

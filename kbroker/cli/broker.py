"""`kbroker broker`: what the brokers of a cluster have, and moving everything away from one of them."""

from __future__ import annotations

import click

from kbroker.admin.brokers import described_log_dirs, drain_plan, listed_brokers, one_broker, served_apis
from kbroker.admin.connection import Connection
from kbroker.admin.placement import move, partitions_of, wait_until_moved
from kbroker.admin.told_everywhere import wait_for_replicas
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_facts, print_json, print_table

_AT_ONCE = 50
"""Partitions that are moved at a time."""


@click.group("broker")
def command() -> None:
    """List, describe and drain brokers."""


@command.command("list")
@json_option
@client_options
def list_brokers(as_json: bool, connection: Connection) -> None:
    """List the brokers that live."""
    with connection.admin() as admin:
        found = listed_brokers(admin, partitions_of(admin))
    if as_json:
        print_json(found)
        return
    headers = ["id", "address", "rack", "controller", "leads", "replicas", "not in sync"]
    print_table(
        headers,
        [
            [b["id"], b["address"], b["rack"], "yes" if b["controller"] else None, b["leads"], b["replicas"], b["late"]]
            for b in found
        ],
    )


@command.command("describe")
@click.argument("broker_id", type=int)
@json_option
@client_options
def describe(broker_id: int, as_json: bool, connection: Connection) -> None:
    """Describe a broker: what it leads and has, and its log directories."""
    with connection.admin() as admin:
        broker = one_broker(admin, partitions_of(admin), broker_id)
        broker["log_dirs"] = described_log_dirs(admin, broker_id)
    if as_json:
        print_json(broker)
        return
    print_facts(
        [
            ("id", broker["id"]),
            ("address", broker["address"]),
            ("rack", broker["rack"]),
            ("controller", "yes" if broker["controller"] else "no"),
            ("leads", broker["leads"]),
            ("replicas", broker["replicas"]),
            ("not in sync", broker["late"]),
        ]
    )
    click.echo()
    rows = [[d["path"], d["replicas"], d["bytes"], d["usable_bytes"]] for d in broker["log_dirs"]]
    print_table(["log directory", "replicas", "bytes", "usable bytes"], rows)


@command.command("api-versions")
@click.argument("broker_id", type=int)
@json_option
@client_options
def api_versions(broker_id: int, as_json: bool, connection: Connection) -> None:
    """List the APIs that a broker serves, and their versions."""
    with connection.admin() as admin:
        one_broker(admin, partitions_of(admin), broker_id)
        rows = served_apis(admin, broker_id)
    if as_json:
        names = ("key", "api", "min_version", "max_version")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(["key", "api", "lowest", "highest"], rows)


@command.command("drain")
@click.argument("broker_id", type=int)
@click.option("--dry-run", is_flag=True, help="Say what would be moved, and move nothing.")
@client_options
def drain(broker_id: int, dry_run: bool, connection: Connection) -> None:
    """Move every replica of a broker to others, so that it can be taken away.

    Each goes to the broker with the fewest replicas that has none of its partition yet, in another rack than the other
    replicas where there is one. The number of replicas stays. What cannot go anywhere is told, and nothing is moved.
    """
    with connection.admin() as admin:
        partitions = partitions_of(admin)
        racks = {each["id"]: each["rack"] for each in listed_brokers(admin, partitions)}
        if broker_id not in racks and not any(broker_id in each["replica_nodes"] for each in partitions.values()):
            raise click.ClickException(f"no broker with id {broker_id} lives, and none has a replica of anything")
        targets, stuck = drain_plan(broker_id, {key: each["replica_nodes"] for key, each in partitions.items()}, racks)
        if stuck:
            topic, index = stuck[0]
            more = f" and {len(stuck) - 1} more partitions" if len(stuck) > 1 else ""
            raise click.ClickException(f"no other broker lives that has no replica of {topic}-{index} yet{more}")
        if dry_run:
            moves = [[topic, index, ",".join(map(str, to))] for (topic, index), to in sorted(targets.items())]
            print_table(["topic", "partition", "replicas"], moves)
            return
        left = sorted(targets)
        while left:
            piece, left = left[:_AT_ONCE], left[_AT_ONCE:]
            move(admin, {key: targets[key] for key in piece})
            wait_until_moved(admin, piece, lambda text: click.echo(text, err=True))
            wait_for_replicas(admin, {key: targets[key] for key in piece})
    click.echo(f"{len(targets)} replicas were moved away from broker {broker_id}")

"""`kbroker broker`: list and describe a cluster's brokers, and move all replicas away from a broker."""

from __future__ import annotations

import click

from kbroker.admin.brokers import (
    described_cluster,
    described_log_dirs,
    listed_brokers,
    listed_replicas,
    one_broker,
    served_apis,
    unregister_broker,
)
from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.connection import Connection, patiently
from kbroker.admin.placement import drain_plan, move, partitions_of, wait_until_moved
from kbroker.admin.visible_everywhere import wait_for_replicas
from kbroker.cli.client import client_options, confirm, warn
from kbroker.cli.completion import complete_brokers, complete_topics
from kbroker.cli.output import Column, Facts, Output, Table, Verbs, output_option, print_table

_AT_ONCE = 50
"""The maximum number of partitions that are moved at the same time."""


@click.group("broker", cls=Verbs)
def command() -> None:
    """List, describe and drain brokers."""


@command.command("cluster-id")
@output_option
@client_options
def cluster_id(output: Output, connection: Connection) -> None:
    """Print the id of the cluster."""
    with connection.admin() as admin:
        found = described_cluster(admin)["cluster_id"]
    if output.is_document:
        output.show({"cluster_id": found})
    else:
        click.echo(found)


@command.command("list")
@click.option(
    "--include-fenced-brokers", "fenced", is_flag=True, help="Also list brokers that are registered but not live."
)
@output_option
@client_options
def list_brokers(fenced: bool, output: Output, connection: Connection) -> None:
    """List the live brokers; on KRaft, the registered brokers."""
    with connection.admin() as admin:
        found = patiently(lambda: listed_brokers(admin, partitions_of(admin)), reads=True)
        missing = patiently(lambda: cluster_view(admin).missing_brokers(), reads=True)
        if fenced:
            others = [each for each in described_cluster(admin, fenced=True)["brokers"] if each["fenced"]]
            empty = {"controller": False, "leads": 0, "replicas": 0, "late": 0}
            found += [{**empty, **each} for each in others if each["id"] not in {known["id"] for known in found}]
            found = [{"fenced": False, **each} for each in sorted(found, key=lambda each: int(each["id"]))]
    controller = Column("controller", lambda broker: "yes" if broker["controller"] else None)
    late = Column("not in sync", "late")
    is_fenced = [Column("fenced", lambda broker: "yes" if broker["fenced"] else None)] if fenced else []
    output.rows(found, "id", "address", "rack", controller, "leads", "replicas", late, *is_fenced)
    for number, count in missing.items():
        warn(f"broker {number} is gone, and has {count} replicas: none of them is in sync")


@command.command("describe")
@click.argument("broker_id", type=int, shell_complete=complete_brokers)
@output_option
@client_options
def describe(broker_id: int, output: Output, connection: Connection) -> None:
    """Describe a broker: the partitions that it leads and hosts, and its log directories."""
    with connection.admin() as admin:
        broker = one_broker(admin, partitions_of(admin), broker_id)
        broker["log_dirs"] = described_log_dirs(admin, broker_id)
    facts = [
        ("id", broker["id"]),
        ("address", broker["address"]),
        ("rack", broker["rack"]),
        ("controller", "yes" if broker["controller"] else "no"),
        ("leads", broker["leads"]),
        ("replicas", broker["replicas"]),
        ("not in sync", broker["late"]),
    ]
    columns: list[Column | str] = [Column("log directory", "path"), "replicas", "bytes", "usable bytes"]
    output.show(broker, Facts(facts), Table(broker["log_dirs"], columns))


@command.command("api-versions")
@click.argument("broker_id", type=int, required=False, shell_complete=complete_brokers)
@output_option
@client_options
def api_versions(broker_id: int | None, output: Output, connection: Connection) -> None:
    """List the APIs that a broker serves, with their versions; without an id, the APIs of all brokers."""
    names = ("key", "api", "min_version", "max_version")
    with connection.admin() as admin:
        ids = [broker_id] if broker_id is not None else [each["id"] for each in described_cluster(admin)["brokers"]]
        if broker_id is not None:
            one_broker(admin, {}, broker_id)
        rows = [(each, row) for each in ids for row in served_apis(admin, each)]
    of = [] if broker_id is not None else ["broker"]
    found = [{**dict.fromkeys(of, each), **dict(zip(names, row, strict=True))} for each, row in rows]
    output.rows(found, *of, "key", "api", Column("lowest", "min_version"), Column("highest", "max_version"))


@command.command("log-dirs")
@click.argument("broker_ids", nargs=-1, type=int, metavar="[BROKER_ID...]", shell_complete=complete_brokers)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Show only this topic; repeatable.",
    shell_complete=complete_topics,
)
@output_option
@client_options
def log_dirs(broker_ids: tuple[int, ...], topics: tuple[str, ...], output: Output, connection: Connection) -> None:
    """List the replicas in log directories: their size, and how far they are behind.

    Without ids, list those of all brokers.
    """
    with connection.admin() as admin:
        known = [each["id"] for each in listed_brokers(admin, {})]
        for each in broker_ids:
            one_broker(admin, {}, each)
        found = listed_replicas(admin, broker_ids or known, topics)
    moves = Column("moves", lambda row: "yes" if row["is_future"] else None)
    path = Column("log directory", "path")
    output.rows(found, "broker", path, "topic", "partition", "bytes", "offset lag", moves)


@command.command("unregister")
@click.argument("broker_id", type=int)
@click.option("--yes", is_flag=True, help="Do not ask for a confirmation.")
@client_options
def unregister(broker_id: int, yes: bool, connection: Connection) -> None:
    """Remove a broker from a cluster on KRaft, if the broker will not return.

    A cluster on ZooKeeper, such as a cluster of kbroker, removes a stopped broker by itself.
    """
    with connection.admin() as admin:
        if not yes:
            confirm(f"forget broker {broker_id}?")
        unregister_broker(admin, broker_id)
    click.echo(f"broker {broker_id} is forgotten")


@command.command("drain")
@click.argument("broker_id", type=int, shell_complete=complete_brokers)
@click.option("--dry-run", is_flag=True, help="Show the moves without moving anything.")
@client_options
def drain(broker_id: int, dry_run: bool, connection: Connection) -> None:
    """Move every replica of a broker to other brokers, so that the broker can be removed.

    A replica can move to any broker that does not host its partition yet. It moves to a rack without another replica of
    the partition, if there is one, and among these brokers to the one with the fewest replicas. The number
    of replicas does not change. If a replica has no target, the verb reports the replica and moves nothing.
    """
    with connection.admin() as admin:
        partitions = partitions_of(admin)
        racks = {each["id"]: each["rack"] for each in listed_brokers(admin, partitions)}
        if broker_id not in racks and not any(broker_id in each["replica_nodes"] for each in partitions.values()):
            raise click.ClickException(f"no live broker has id {broker_id}, and no partition has a replica on it")
        targets, stuck = drain_plan(broker_id, {key: each["replica_nodes"] for key, each in partitions.items()}, racks)
        if stuck:
            topic, index = stuck[0]
            more = f" and {len(stuck) - 1} more partitions" if len(stuck) > 1 else ""
            raise click.ClickException(f"every other live broker already has a replica of {topic}-{index}{more}")
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

"""`kbroker broker`: what the brokers of a cluster have, and moving everything away from one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click
from kafka.protocol.api_key import ApiKey

from kbroker.admin.connection import Connection
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key, move, partitions_of, wait_until_moved
from kbroker.admin.told_everywhere import wait_for_replicas
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_facts, print_json, print_table
from kbroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

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
        found = _brokers(admin, partitions_of(admin))
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
        broker = _one(admin, partitions_of(admin), broker_id)
        broker["log_dirs"] = [
            {
                "path": each["log_dir"],
                "replicas": sum(len(topic["partitions"]) for topic in each["topics"]),
                "bytes": sum(p["partition_size"] for topic in each["topics"] for p in topic["partitions"]),
                "usable_bytes": each.get("usable_bytes", -1),
            }
            for answer in admin.describe_log_dirs(brokers=[broker_id])
            for each in answer["log_dirs"]
        ]
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
    request = ApiVersionsRequest(client_software_name="kbroker-cli", client_software_version="1")
    with connection.admin() as admin:
        _one(admin, partitions_of(admin), broker_id)
        answer = ask_broker(admin, broker_id, request, ApiVersionsResponse)
    served = sorted(answer.api_keys, key=lambda each: each.api_key)
    rows = [[each.api_key, _api_name(each.api_key), each.min_version, each.max_version] for each in served]
    if as_json:
        names = ("key", "api", "min_version", "max_version")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(["key", "api", "lowest", "highest"], rows)


def _api_name(key: int) -> str | None:
    """Return Kafka's name of an API; None for one that the client here does not know."""
    try:
        return str(ApiKey(key).name)
    except ValueError:
        return None


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
        racks = {each["id"]: each["rack"] for each in _brokers(admin, partitions)}
        if broker_id not in racks and not any(broker_id in each["replica_nodes"] for each in partitions.values()):
            raise click.ClickException(f"no broker with id {broker_id} lives, and none has a replica of anything")
        targets, stuck = plan(broker_id, {key: each["replica_nodes"] for key, each in partitions.items()}, racks)
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


def plan(
    broker_id: int, replicas: Mapping[Key, Sequence[int]], racks: Mapping[int, str | None]
) -> tuple[dict[Key, list[int]], list[Key]]:
    """Return the replicas that partitions have without a broker, and the partitions that have no other to go to."""
    load = Counter(broker for each in replicas.values() for broker in each)
    targets: dict[Key, list[int]] = {}
    stuck: list[Key] = []
    for key, known in sorted(replicas.items()):
        if broker_id not in known:
            continue
        others = [each for each in known if each != broker_id]
        used = {racks.get(each) for each in others} - {None}
        free = [each for each in sorted(racks) if each != broker_id and each not in others]
        if not free:
            stuck.append(key)
            continue
        chosen = min(free, key=lambda each: (racks[each] in used, load[each]))
        load[chosen] += 1
        targets[key] = [chosen if each == broker_id else each for each in known]
    return targets, stuck


def _brokers(admin: Any, partitions: Mapping[Key, Mapping[str, Any]]) -> list[dict[str, Any]]:
    cluster = admin.describe_cluster()
    leads = Counter(each["leader_id"] for each in partitions.values())
    has = Counter(broker for each in partitions.values() for broker in each["replica_nodes"])
    late = Counter(
        broker for each in partitions.values() for broker in each["replica_nodes"] if broker not in each["isr_nodes"]
    )
    found = []
    for each in cluster["brokers"]:
        number = int(each["broker_id"] if "broker_id" in each else each["node_id"])  # Metadata's name for it
        found.append(
            {
                "id": number,
                "address": f"{each['host']}:{each['port']}",
                "rack": each.get("rack"),
                "controller": cluster["controller_id"] == number,
                "leads": leads[number],
                "replicas": has[number],
                "late": late[number],
            }
        )
    return sorted(found, key=lambda each: int(each["id"]))


def _one(admin: Any, partitions: Mapping[Key, Mapping[str, Any]], broker_id: int) -> dict[str, Any]:
    for each in _brokers(admin, partitions):
        if each["id"] == broker_id:
            return each
    raise click.ClickException(f"no broker with id {broker_id} lives")

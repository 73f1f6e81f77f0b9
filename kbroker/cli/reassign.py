"""`kbroker topic reassign`: set the replicas of one partition, or of all partitions in a file or proposal.

Owns the verb. The file has the format of kafka-reassign-partitions, so that both tools can be used in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker.admin.brokers import listed_brokers
from kbroker.admin.connection import Connection
from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import Failures, raise_any
from kbroker.admin.placement import Key, move, moving, parse_replicas, partitions_of, wait_until_moved
from kbroker.admin.reassignments import (
    Moves,
    as_document,
    clear_throttles,
    move_directories,
    parse_moves,
    proposal,
    set_throttles,
)
from kbroker.admin.topics import existing_topics
from kbroker.admin.visible_everywhere import wait_for_replicas
from kbroker.cli.client import client_options, warn
from kbroker.cli.completion import complete_topics
from kbroker.cli.output import Column, Output, output_option

_LEAST_RATE = 1_024


@click.command("reassign", short_help="Move partitions to other replicas.")
@click.argument("name", required=False, shell_complete=complete_topics)
@click.option(
    "-p",
    "--partition",
    "partition",
    type=click.IntRange(0),
    help="Move this partition; without this option, all partitions of the topic.",
)
@click.option("--to", "to", metavar="ID,ID...", help="The new replicas, with the preferred leader first.")
@click.option("--json-file", type=click.File("rb"), help="A file of moves, in the format of kafka-reassign-partitions.")
@click.option("--cancel", is_flag=True, help="Return to the previous replicas.")
@click.option(
    "--verify", is_flag=True, help="Show which moves of --json-file are finished. If none still runs, remove throttles."
)
@click.option("--generate", metavar="ID,ID...", help="Print a file with moves to these brokers, and move nothing.")
@click.option("--disable-rack-aware", is_flag=True, help="With --generate: ignore racks.")
@click.option(
    "--disallow-replication-factor-change", is_flag=True, help="Refuse moves that change the number of replicas."
)
@click.option(
    "--throttle",
    type=click.IntRange(_LEAST_RATE),
    metavar="BYTES/S",
    help="The maximum rate of copies between brokers.",
)
@click.option(
    "--replica-alter-log-dirs-throttle",
    "directories_throttle",
    type=click.IntRange(_LEAST_RATE),
    metavar="BYTES/S",
    help="The maximum rate of copies between log directories.",
)
@click.option("--preserve-throttles", is_flag=True, help="Do not change throttles.")
@click.option("--wait", is_flag=True, help="Wait for the end of the moves. With --throttle, then remove the throttles.")
@output_option
@client_options
def reassign(
    name: str | None,
    partition: int | None,
    to: str | None,
    json_file: Any,
    cancel: bool,
    verify: bool,
    generate: str | None,
    disable_rack_aware: bool,
    disallow_replication_factor_change: bool,
    throttle: int | None,
    directories_throttle: int | None,
    preserve_throttles: bool,
    wait: bool,
    output: Output,
    connection: Connection,
) -> None:
    """Move partitions to other replicas; without --to, --json-file and --cancel, list the current moves."""
    _check(name, to, json_file, cancel, verify, generate)
    wanted = [] if to is None else parse_replicas(to)
    with connection.admin() as admin:
        moves = Moves() if json_file is None else parse_moves(json_file.read())
        if generate is not None:
            _propose(admin, str(name), parse_replicas(generate), by_rack=not disable_rack_aware, output=output)
        elif verify:
            _report_verified(admin, moves, output, keep=preserve_throttles)
        elif to is None and not cancel and not moves.replicas:
            _print_moving(admin, name, output)
        else:
            if not moves.replicas:
                keys = _keys(admin, str(name), partition)
                moves = Moves(dict.fromkeys(keys, wanted))
            now = {key: list(map(int, each["replica_nodes"])) for key, each in _known(admin, moves.replicas).items()}
            if disallow_replication_factor_change and not cancel:
                _refuse_other_factor(now, moves.replicas)
            if not cancel and not preserve_throttles:
                set_throttles(admin, now, moves.replicas, throttle, directories_throttle)
            count = _move(admin, moves, cancel=cancel, wait=wait)
            if wait and throttle is not None and not preserve_throttles:
                _end_throttles(admin, moves, now)
            click.echo(f"{count} partitions {'go back' if cancel else 'were moved' if wait else 'are being moved'}")


def _check(name: str | None, to: str | None, json_file: Any, cancel: bool, verify: bool, generate: str | None) -> None:
    if to is not None and cancel:
        raise click.UsageError("--to and --cancel exclude each other")
    if json_file is not None and (name is not None or to is not None):
        raise click.UsageError("--json-file names partitions and replicas: not with a name or --to")
    if verify and json_file is None:
        raise click.UsageError("--verify needs --json-file")
    if (to is not None or cancel or generate is not None) and name is None and json_file is None:
        raise click.UsageError("name the topic")


def _move(admin: Any, moves: Moves, *, cancel: bool, wait: bool) -> int:
    taken = move(admin, {key: None if cancel else to for key, to in moves.replicas.items()})
    if not cancel and moves.directories:
        wait_until_moved(admin, taken, lambda text: click.echo(text, err=True))
        move_directories(admin, moves)
    if wait:
        wait_until_moved(admin, taken, lambda text: click.echo(text, err=True))
        wait_for_replicas(admin, {} if cancel else {key: moves.replicas[key] for key in taken})
    return len(taken)


def _keys(admin: Any, name: str, partition: int | None) -> list[Key]:
    if name not in existing_topics(admin, (name,)):
        raise click.ClickException(no_such_topic(admin, name))
    keys = [key for key in sorted(partitions_of(admin, [name])) if partition in (None, key[1])]
    if not keys:
        raise click.ClickException(f"topic {name} has no partition {partition}")
    return keys


def _known(admin: Any, wanted: Mapping[Key, object]) -> dict[Key, dict[str, Any]]:
    """Return the Metadata of partitions. Raises ClickException if one is missing."""
    names = sorted({topic for topic, _ in wanted})
    there = existing_topics(admin, names)
    missing = [no_such_topic(admin, name) for name in names if name not in there]
    known = {key: each for key, each in partitions_of(admin, list(there)).items() if key in wanted}
    lost = [key for key in sorted(wanted) if key[0] in there and key not in known]
    missing += [f"topic {topic} has no partition {index}" for topic, index in lost]
    raise_any(missing)
    return known


def _refuse_other_factor(now: Mapping[Key, list[int]], then: Mapping[Key, list[int]]) -> None:
    wrong = [key for key in sorted(then) if len(now[key]) != len(then[key])]
    if wrong:
        raise Failures(
            [f"{key[0]}-{key[1]} has {len(now[key])} replicas, and would have {len(then[key])}" for key in wrong]
        )


def _propose(admin: Any, name: str, brokers: list[int], *, by_rack: bool, output: Output) -> None:
    keys = _keys(admin, name, None)
    known = partitions_of(admin, [name])
    racks = {each["id"]: each["rack"] for each in listed_brokers(admin, {})}
    missing = [each for each in brokers if each not in racks]
    if missing:
        raise click.ClickException(f"no live broker has id {missing[0]}; `kbroker broker list` shows the live brokers")
    made = proposal({key: known[key]["replica_nodes"] for key in keys}, brokers, racks, by_rack=by_rack)
    (Output("json") if output.form == "table" else output).show(as_document(made))


def _report_verified(admin: Any, moves: Moves, output: Output, *, keep: bool) -> None:
    known, under_way = _known(admin, moves.replicas), moving(admin)
    rows = []
    for key, wanted in sorted(moves.replicas.items()):
        there = list(map(int, known[key]["replica_nodes"]))
        state = "is being moved" if key in under_way else "is there" if there == wanted else "is elsewhere"
        rows.append({"topic": key[0], "partition": key[1], "state": state, "replicas": there, "wanted": wanted})
    output.rows(rows, "topic", "partition", "state", _of_nodes("replicas"), _of_nodes("wanted"))
    if not under_way.keys() & moves.replicas.keys() and not keep:
        _end_throttles(admin, moves, {key: list(map(int, each["replica_nodes"])) for key, each in known.items()})
    elsewhere = sum(row["state"] == "is elsewhere" for row in rows)
    if elsewhere:
        text = f"{elsewhere} partitions have other replicas and are not being moved: give the file again"
        raise click.ClickException(text)


def _end_throttles(admin: Any, moves: Moves, now: Mapping[Key, list[int]]) -> None:
    brokers = {each["id"] for each in listed_brokers(admin, {})}
    missing = {each for key, to in moves.replicas.items() for each in (*now.get(key, ()), *to)} - brokers
    for each in sorted(missing):
        warn(f"broker {each} does not live: its throttle stays")
    clear_throttles(admin, sorted({topic for topic, _ in moves.replicas}), sorted(brokers))


def _print_moving(admin: Any, name: str | None, output: Output) -> None:
    rows = [
        {"topic": topic, "partition": index, **state}
        for (topic, index), state in sorted(moving(admin).items())
        if name in (None, topic)
    ]
    coming, going = _of_nodes("to come", "adding_replicas"), _of_nodes("to go", "removing_replicas")
    output.rows(rows, "topic", "partition", _of_nodes("replicas"), coming, going)


def _of_nodes(header: str, key: str = "") -> Column:
    return Column(header, lambda row: ",".join(map(str, row[key or header])))

"""`kbroker group`: list, describe, reset and delete consumer groups.

Owns what a reset does: which offsets it would commit, and that a group with members keeps its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click
import kafka.errors
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection, patiently
from kbroker.admin.consumer_groups import describe_consumer_group
from kbroker.admin.errors import Failures
from kbroker.admin.own_request import ask_coordinator
from kbroker.cli.client import client_options
from kbroker.cli.option_types import Ago, Moment, OffsetsInFile
from kbroker.cli.output import json_option, print_facts, print_json, print_table
from kbroker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

STATES: Final = (
    "Stable",
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)
_NO_GROUP: Final = ("GroupIdNotFoundError",)
_COORDINATOR_ON_ITS_WAY: Final = (
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "NotCoordinatorError",
)
_WITHOUT_MEMBERS: Final = ("Empty", "Dead", None)


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
        found = _listed(admin, states)
    if as_json:
        print_json(list(found.values()))
    else:
        print_table(["group", "state", "type", "protocol"], [list(group.values()) for group in found.values()])


def _listed(admin: Any, states: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    groups = patiently(lambda: admin.list_groups(states_filter=list(states) or None))
    return {
        group["group_id"]: {
            "group": group["group_id"],
            "state": group.get("group_state"),
            "type": group.get("group_type"),
            "protocol": group["protocol_type"],
        }
        for group in sorted(groups, key=lambda group: str(group["group_id"]))
    }


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
            group = _describe(admin, name)
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


def _answered(admin: Any, name: str) -> Any:
    """Ask for one group; raises a retriable error while its coordinator is on its way, which the client only words."""
    group = admin.describe_groups([name])[name]
    if group["error"] is not None and any(each in group["error"] for each in _COORDINATOR_ON_ITS_WAY):
        raise kafka.errors.CoordinatorLoadInProgressError(group["error"])
    return group


def _group(admin: Any, name: str) -> dict[str, Any] | None:
    """Return state, type, protocol and members of a group; None if it does not exist."""
    group = patiently(lambda: _answered(admin, name))
    if group["error"] is None and group["group_state"] != "Dead":
        return {
            "group": name,
            "state": group["group_state"],
            "type": "classic",
            "protocol": group["protocol_type"],
            "assignor": group["protocol_data"] or None,
            "members": [_member(each) for each in group["members"]],
        }
    if group["error"] is not None and not any(each in group["error"] for each in _NO_GROUP):
        raise click.ClickException(f"cannot describe group {name}: {group['error']}")
    found = describe_consumer_group(admin, name)
    if found is not None:
        return found
    # Share and streams groups are listed, but described by APIs of their own.
    listed = _listed(admin).get(name)
    if listed is None or listed["state"] == "Dead":
        return None
    return {**listed, "assignor": None, "members": None}


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    assignment = member["member_assignment"]
    partitions = assignment.get("assigned_partitions", ()) if isinstance(assignment, dict) else ()
    return {
        "member_id": member["member_id"],
        "instance_id": member.get("group_instance_id"),
        "client_id": member["client_id"],
        "host": member["client_host"],
        "partitions": [
            {"topic": each["topic"], "partition": partition}
            for each in sorted(partitions, key=lambda each: str(each["topic"]))
            for partition in sorted(each["partitions"])
        ],
    }


def _describe(admin: Any, name: str) -> dict[str, Any] | None:
    group = _group(admin, name)
    if group is None:
        return None
    owners = {
        TopicPartition(each["topic"], each["partition"]): member["member_id"]
        for member in group["members"] or ()
        for each in member["partitions"]
    }
    committed = _committed(admin, name)
    wanted = sorted({*owners, *committed})
    ends = _Offsets(admin, wanted).of(OffsetSpec.LATEST)
    rows = []
    for each in wanted:
        current, end = committed.get(each), ends.get(each)
        rows.append(
            {
                "topic": each.topic,
                "partition": each.partition,
                "current_offset": current,
                "log_end_offset": end,
                "lag": None if current is None or end is None else max(end - current, 0),
                "member_id": owners.get(each),
            }
        )
    return {**group, "partitions": rows}


def _committed(admin: Any, name: str) -> dict[TopicPartition, int]:
    found = patiently(lambda: admin.list_group_offsets({name: None}))[name]
    return {partition: at.offset for partition, at in found.items() if at.offset >= 0}


class _Offsets:
    """Offsets of partitions; those that are gone, or have no leader, have none."""

    def __init__(self, admin: Any, partitions: Iterable[TopicPartition]) -> None:
        self._admin = admin
        partitions = list(partitions)
        topics = admin.describe_topics(sorted({each.topic for each in partitions})) if partitions else []
        led = {
            TopicPartition(topic["name"], p["partition_index"])
            for topic in topics
            for p in topic["partitions"]
            if p["leader_id"] >= 0
        }
        self.partitions = [each for each in partitions if each in led]

    def of(self, spec: int) -> dict[TopicPartition, int]:
        """Return each partition's offset that `spec` names: an OffsetSpec, or a time in ms."""
        if not self.partitions:
            return {}
        found = patiently(lambda: self._admin.list_partition_offsets(dict.fromkeys(self.partitions, spec)))
        return {each: at.offset for each, at in found.items()}


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


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a reset goes: exactly one of these is set."""

    earliest: bool
    latest: bool
    offset: int | None
    time_ms: int | None
    shift: int | None
    current: bool = False
    listed: Mapping[TopicPartition, int] | None = None

    def check(self) -> None:
        """Raise UsageError unless one target was chosen."""
        given = (self.offset, self.time_ms, self.shift, self.listed)
        if sum([self.earliest, self.latest, self.current, *(v is not None for v in given)]) != 1:
            raise click.UsageError(
                "choose one of --to-earliest --to-latest --to-current --to-offset --to-datetime --by-duration"
                " --shift-by --from-file"
            )


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
    target = _Target(to_earliest, to_latest, to_offset, time_ms, shift_by, to_current, from_file)
    target.check()
    if from_file is not None and (topics or all_topics):
        raise click.UsageError("--from-file says which partitions, not --topic or --all-topics")
    if from_file is None and bool(topics) == all_topics:
        raise click.UsageError("give either --topic or --all-topics")
    with connection.admin() as admin:
        group = _group(admin, name)
        state = None if group is None else group["state"]
        if state not in _WITHOUT_MEMBERS:
            raise click.ClickException(f"group {name} has members (its state is {state}); stop them first")
        committed = {} if group is None else _committed(admin, name)
        if from_file is None:
            partitions = sorted(committed) if all_topics else _partitions(admin, topics)
        else:
            partitions = sorted(from_file)
        new = _new_offsets(admin, partitions, committed, target)
        if execute:
            _alter(admin, name, new)
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


def _partitions(admin: Any, wanted: tuple[str, ...]) -> list[TopicPartition]:
    """Return the partitions that texts like "orders" and "orders:0,2" name."""
    asked: dict[str, set[int] | None] = {}
    for text in wanted:
        topic, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not all(each.isdecimal() for each in parts):
            raise click.UsageError(f"--topic takes TOPIC or TOPIC:0,1, not {text!r}")
        asked[topic] = {*map(int, parts), *(asked.get(topic) or ())} if parts else None
    found = []
    known = {topic["name"]: topic for topic in admin.describe_topics(sorted(asked)) if not topic["error_code"]}
    for topic, numbers_asked in asked.items():
        if topic not in known:
            raise click.ClickException(f"topic {topic} does not exist")
        there = {p["partition_index"] for p in known[topic]["partitions"]}
        for number in sorted((numbers_asked or set()) - there):
            raise click.ClickException(f"topic {topic} has no partition {number}")
        found += [TopicPartition(topic, number) for number in numbers_asked or there]
    return sorted(found)


def _new_offsets(
    admin: Any, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int], target: _Target
) -> dict[TopicPartition, int]:
    offsets = _Offsets(admin, partitions)
    for each in partitions:
        if each not in offsets.partitions:
            raise click.ClickException(f"partition {each.partition} of {each.topic} is gone, or has no leader")
        if (target.shift is not None or target.current) and each not in committed:
            what = "stay" if target.current else "be shifted"
            raise click.ClickException(f"nothing is committed for {each.topic} {each.partition}: it cannot {what}")
    earliest, latest = offsets.of(OffsetSpec.EARLIEST), offsets.of(OffsetSpec.LATEST)
    at_time = {} if target.time_ms is None else offsets.of(target.time_ms)
    new = {}
    for each in partitions:
        if target.earliest:
            wanted = earliest[each]
        elif target.offset is not None:
            wanted = target.offset
        elif target.shift is not None or target.current:
            wanted = committed[each] + (target.shift or 0)
        elif target.listed is not None:
            wanted = target.listed[each]
        elif at_time.get(each, -1) >= 0:
            wanted = at_time[each]
        else:
            wanted = latest[each]
        new[each] = min(max(wanted, earliest[each]), latest[each])
    return new


def _alter(admin: Any, name: str, new: Mapping[TopicPartition, int]) -> None:
    asked = {each: OffsetAndMetadata(offset, "", None) for each, offset in new.items()}
    result = patiently(lambda: admin.alter_group_offsets(name, asked))
    failed = {each: error for each, error in result.items() if error is not kafka.errors.NoError}
    if failed:
        raise Failures([f"cannot reset {p.topic} {p.partition}: {error_text(e)}" for p, e in sorted(failed.items())])


@command.command("delete-offsets", short_help="Delete what a group has committed for topics.")
@click.argument("name", metavar="GROUP")
@click.option("--topic", "topics", multiple=True, required=True, metavar="TOPIC[:P,...]", help="Of these; repeatable.")
@client_options
def delete_offsets(name: str, topics: tuple[str, ...], connection: Connection) -> None:
    """Delete committed offsets of topics that no member of the group reads."""
    with connection.admin() as admin:
        asked: dict[str, list[OffsetDeleteRequestPartition]] = {}
        for each in _partitions(admin, topics):
            asked.setdefault(each.topic, []).append(OffsetDeleteRequestPartition(each.partition))
        request = OffsetDeleteRequest(name, [OffsetDeleteRequestTopic(*each) for each in asked.items()])
        answer = patiently(lambda: _deleted_offsets(admin, name, request))
    failures = []
    for topic in answer.topics:
        for partition in topic.partitions:
            error = code_error(partition.error_code)
            if error is not None:
                failures.append(f"{topic.name} {partition.partition_index}: {error_text(error)}")
    if failures:
        raise Failures(failures)
    click.echo(f"{name}: without offsets of {', '.join(sorted(asked))}")


def _deleted_offsets(admin: Any, name: str, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Ask once; raises what the client has for a code."""
    answer = ask_coordinator(admin, name, request, OffsetDeleteResponse)
    if answer is None:
        raise click.ClickException("this broker does not delete offsets (Apache Kafka does since 2.4)")
    error = code_error(answer.error_code)
    if error is not None:
        if error.__name__ in _NO_GROUP:
            raise click.ClickException(f"group {name} does not exist")
        raise error
    return answer


# -- delete -------------------------------------------------------------------------------------------------------


@command.command("delete", short_help="Delete groups that have no members.")
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@client_options
def delete(names: tuple[str, ...], connection: Connection) -> None:
    """Delete groups that have no members, with their committed offsets."""
    failures = []
    with connection.admin() as admin:
        results = patiently(lambda: admin.delete_groups(list(names)))
    for name in names:
        said = results[name]
        if said == "OK":
            click.echo(f"deleted {name}")
        elif said in _NO_GROUP:
            failures.append(f"group {name} does not exist")
        else:
            failures.append(f"cannot delete {name}: {error_text(getattr(kafka.errors, said, None), None)}")
    if failures:
        raise Failures(failures)

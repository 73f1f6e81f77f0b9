"""Moves of partitions in the format of Kafka's tools: the JSON of reassignments, their proposals, and throttles.

Owns this JSON format, which kafka-reassign-partitions also reads and writes, and the throttles that a move needs. Never
prints.

    {"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]}
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.structs import TopicPartitionReplica

from kbroker.admin.configs import Subject, alter_configs
from kbroker.admin.errors import AdminError, WrongInput, error_text, raise_any
from kbroker.admin.placement import Key
from kbroker.config.operations import Op
from kbroker.protocol.messages.configs import IncrementalConfig

_ANY: Final = "any"
_FORM: Final = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}], "version": 1}'
_ROLES: Final = ("leader", "follower")
_RATE: Final = "{}.replication.throttled.rate"
_REPLICAS: Final = "{}.replication.throttled.replicas"
_DIRECTORIES_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"


@dataclass(frozen=True, slots=True)
class Moves:
    """The target replicas of partitions, and their target directories if given."""

    replicas: dict[Key, list[int]] = field(default_factory=dict)
    directories: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """The target directories by topic, partition and broker."""


def parse_moves(data: bytes) -> Moves:
    """Parse the JSON of a reassignment. Raises WrongInput."""
    moves = Moves()
    try:
        for each in json.loads(data)["partitions"]:
            key = (str(each["topic"]), int(each["partition"]))
            replicas = [int(broker) for broker in each["replicas"]]
            directories = [str(path) for path in each.get("log_dirs") or [_ANY] * len(replicas)]
            if key in moves.replicas:
                raise WrongInput(f"the file names {key[0]}-{key[1]} twice")
            if not replicas or len(set(replicas)) < len(replicas) or len(directories) != len(replicas):
                raise WrongInput(f"replicas of {key[0]}-{key[1]} must be different broker ids, with as many log_dirs")
            moves.replicas[key] = replicas
            there = zip(replicas, directories, strict=True)
            moves.directories.update({(*key, broker): path for broker, path in there if path != _ANY})
    except (ValueError, TypeError, KeyError, AttributeError):
        raise WrongInput(f"the file does not have the form {_FORM}") from None
    if not moves.replicas:
        raise WrongInput(f"the file names no partition: {_FORM}")
    return moves


def parse_partitions(data: bytes) -> dict[str, list[int]]:
    """Parse the JSON that names partitions for kafka-leader-election. Raises WrongInput."""
    found: dict[str, list[int]] = {}
    try:
        for each in json.loads(data)["partitions"]:
            found.setdefault(str(each["topic"]), []).append(int(each["partition"]))
    except (ValueError, TypeError, KeyError):
        raise WrongInput('the file does not have the form {"partitions": [{"topic": "t", "partition": 0}]}') from None
    return found


def as_document(replicas: Mapping[Key, Sequence[int]]) -> dict[str, Any]:
    """Return the content of a reassignment's file."""
    partitions = [
        {"topic": topic, "partition": index, "replicas": list(each), "log_dirs": [_ANY] * len(each)}
        for (topic, index), each in sorted(replicas.items())
    ]
    return {"version": 1, "partitions": partitions}


def proposal(
    now: Mapping[Key, Sequence[int]], brokers: Sequence[int], racks: Mapping[int, str | None], *, by_rack: bool
) -> dict[Key, list[int]]:
    """Return new replicas of partitions, spread evenly over `brokers`; no partition changes its number of replicas.

    The brokers become leaders of partitions in turn. Each further replica is on the next broker; with `by_rack`, on the
    next broker in another rack if possible. Raises WrongInput if there are too few brokers.
    """
    order = sorted(brokers)
    begin = random.randrange(len(order))
    found = {}
    for number, (key, known) in enumerate(sorted(now.items())):
        if len(known) > len(order):
            raise WrongInput(f"{key[0]}-{key[1]} has {len(known)} replicas: name at least as many brokers")
        turned = [order[(begin + number + step) % len(order)] for step in range(len(order))]
        chosen = turned[:1]
        while len(chosen) < len(known):
            used = {racks.get(each) for each in chosen}
            left = [each for each in turned if each not in chosen]
            elsewhere = [each for each in left if by_rack and racks.get(each) not in used]
            chosen.append((elsewhere or left)[0])
        found[key] = chosen
    return found


def move_directories(admin: Any, moves: Moves) -> int:
    """Move replicas into the given directories on their brokers; return the number of these replicas.

    Raises Failures.
    """
    if not moves.directories:
        return 0
    requested = {TopicPartitionReplica(*where): path for where, path in moves.directories.items()}
    answers = admin.alter_replica_log_dirs(requested)
    failures = [
        f"{where.topic}-{where.partition} on broker {where.broker_id}: {error_text(error)}"
        for where, error in answers.items()
        if getattr(error, "errno", 0)
    ]
    raise_any(failures)
    return len(answers)


def set_throttles(
    admin: Any,
    now: Mapping[Key, Sequence[int]],
    then: Mapping[Key, Sequence[int]],
    rate: int | None,
    directories_rate: int | None,
) -> None:
    """Limit the bytes per second of a move.

    The limit applies to leaders on the current brokers, which send the records, and to followers on the new brokers,
    which fetch them. Raises AdminError.
    """
    rates = {_RATE.format(role): rate for role in _ROLES} if rate is not None else {}
    if directories_rate is not None:
        rates[_DIRECTORIES_RATE] = directories_rate
    brokers = {each for key in then for each in (*now.get(key, ()), *then[key])}
    for broker in sorted(brokers):
        _set(admin, Subject("broker", str(broker)), {key: str(value) for key, value in rates.items()})
    if rate is None:
        return
    for topic in sorted({topic for topic, _ in then}):
        indexes = sorted(index for name, index in then if name == topic)
        leading = [f"{index}:{each}" for index in indexes for each in now.get((topic, index), ())]
        coming = [
            f"{index}:{each}"
            for index in indexes
            for each in then[topic, index]
            if each not in now.get((topic, index), ())
        ]
        throttles = {_REPLICAS.format("leader"): ",".join(leading), _REPLICAS.format("follower"): ",".join(coming)}
        _set(admin, Subject("topic", topic), throttles)


def clear_throttles(admin: Any, topics: Sequence[str], brokers: Sequence[int]) -> None:
    """Remove the limits of moves. Raises AdminError."""
    rates = [*(_RATE.format(role) for role in _ROLES), _DIRECTORIES_RATE]
    for broker in brokers:
        _set(admin, Subject("broker", str(broker)), dict.fromkeys(rates))
    for topic in topics:
        _set(admin, Subject("topic", topic), dict.fromkeys(_REPLICAS.format(role) for role in _ROLES))


def _set(admin: Any, subject: Subject, values: Mapping[str, str | None]) -> None:
    ops = [
        IncrementalConfig(key, Op.DELETE if value is None else Op.SET, value)
        for key, value in values.items()
        if value != ""  # the topic's list of throttled replicas is empty
    ]
    if ops:
        try:
            alter_configs(admin, subject, ops, dry_run=False)
        except AdminError as error:
            raise AdminError(f"throttling: {error}") from None

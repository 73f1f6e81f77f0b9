"""The placement of replicas: moving them, and electing leaders among them.

Owns the requests to the cluster and the form of their results. Chooses the new brokers for the replicas of a drained
broker. Distinguishes changes from failures in an election's results. Never prints.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

from kbroker.admin.did_you_mean import no_such_topic
from kbroker.admin.errors import AdminError, WrongInput, code_error, error_text, raise_any
from kbroker.admin.visible_everywhere import wait_for_preferred_leaders

POLL_SECONDS = 0.5
Key = tuple[str, int]


def partitions_of(admin: Any, names: Iterable[str] | None = None) -> dict[Key, dict[str, Any]]:
    """Return the Metadata of the partitions of topics, or of all topics."""
    topics = admin.describe_topics(None if names is None else list(names))
    return {
        (str(topic["name"]), int(each["partition_index"])): each for topic in topics for each in topic["partitions"]
    }


def leaders(admin: Any, topic: str | None = None, partition: int | None = None) -> dict[Key, int]:
    """Return the leaders of all partitions, of one topic's partitions, or of one partition.

    Raises AdminError if none matches.
    """
    found = partitions_of(admin, None if topic is None else [topic])
    chosen = {key: int(each["leader_id"]) for key, each in found.items() if partition is None or key[1] == partition}
    if topic is not None and not chosen:
        there = sum(name == topic for name, _ in found)
        if not there:
            raise AdminError(no_such_topic(admin, topic))
        raise AdminError(f"topic {topic} has no partition {partition}; it has {there}, from 0 on")
    return chosen


def move(admin: Any, targets: Mapping[Key, Sequence[int] | None]) -> list[Key]:
    """Start moving partitions to other replicas (None: cancel the move); return the accepted partitions.

    Raises Failures.
    """
    requested = {TopicPartition(*key): None if to is None else list(to) for key, to in targets.items()}
    answers = admin.alter_partition_reassignments(requested)
    failures = [
        f"cannot move {where.topic}-{where.partition}: {error_text(error)}"
        for where, error in answers.items()
        if error is not None
    ]
    raise_any(failures)
    return [(where.topic, where.partition) for where in answers]


def moving(admin: Any) -> dict[Key, dict[str, list[int]]]:
    """Return the partitions that are being moved, with their current, added and removed replicas."""
    found = admin.list_partition_reassignments()
    return {(where.topic, where.partition): state for where, state in found.items()}


def wait_until_moved(admin: Any, keys: Iterable[Key], report: Callable[[str], None]) -> None:
    """Wait until the moves of the partitions have ended; report the number of remaining moves when it changes."""
    wanted, reported = set(keys), -1
    while left := wanted & moving(admin).keys():
        if len(left) != reported:
            reported = len(left)
            report(f"{reported} of {len(wanted)} partitions are being moved")
        time.sleep(POLL_SECONDS)


def parse_replicas(text: str) -> list[int]:
    """Parse a list of broker ids like 1,2,3; the first is the preferred leader."""
    try:
        replicas = [int(each) for each in text.split(",")]
    except ValueError:
        raise WrongInput(f"replicas are broker ids like 1,2,3, not {text!r}") from None
    if len(set(replicas)) < len(replicas) or min(replicas) < 0:
        raise WrongInput(f"{text} names a broker twice, or an id that no broker can have")
    return replicas


def drain_plan(
    broker_id: int, replicas: Mapping[Key, Sequence[int]], racks: Mapping[int, str | None]
) -> tuple[dict[Key, list[int]], list[Key]]:
    """Return the plan of a drain: new replicas for the partitions of `broker_id`, and the partitions that must stay.

    A partition must stay if no other broker can host it.
    """
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


def elect_leaders(
    admin: Any, names: Sequence[str] | Mapping[str, Sequence[int]] | None, *, unclean: bool
) -> tuple[list[Key], list[str]]:
    """Elect the preferred replicas as leaders; with `unclean`, elect any live replica if no in-sync replica is alive.

    Returns the partitions with a new leader, and the failures; a partition that needs no election is in neither list.
    """
    wanted = None if not names else dict(names) if isinstance(names, Mapping) else list(names)
    answer = admin.elect_leaders(int(unclean), wanted, raise_errors=False)
    failures: list[str] = []
    changed: list[Key] = []
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            error = code_error(each.error_code)
            if error is None:
                changed.append((topic.topic, each.partition_id))
            elif error.message != "ELECTION_NOT_NEEDED":
                failures.append(f"{topic.topic}-{each.partition_id}: {error_text(error, each.error_message)}")
    if not unclean:
        wait_for_preferred_leaders(admin, changed)
    return changed, failures

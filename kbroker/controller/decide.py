"""What the controller decides, as pure functions of the cluster's state: names, assignments, leaders.

Owns the rules of topic creation and growth. Never stores, never does I/O. A refused request raises ApiError with
Kafka's code and text (ReplicationControlManager, Topic).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from kbroker.cluster_state import ClusterState, PartitionState
from kbroker.protocol.errors import ApiError, ErrorCode

MAX_NAME_LENGTH = 249
MAX_PARTITIONS_PER_REQUEST = 10_000
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """Return why a topic may not have this name (None: it may), in Kafka's words."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that Kafka does not take."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")


class CollidingNames:
    """The names of topics by what they are in metrics, where '.' and '_' are the same.

    A lookup costs the same however many topics there are.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._by_metric: dict[str, dict[str, None]] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        if "." in name or "_" in name:
            self._by_metric.setdefault(name.replace(".", "_"), {})[name] = None

    def discard(self, name: str) -> None:
        metric = name.replace(".", "_")
        held = self._by_metric.get(metric, {})
        held.pop(name, None)
        if not held:
            self._by_metric.pop(metric, None)

    def other(self, name: str, besides: Container[str] = ()) -> str | None:
        """Return a topic whose name differs from `name` only in '.' and '_', and is not among `besides`."""
        held = self._by_metric.get(name.replace(".", "_"), ())
        return next((each for each in held if each != name and each not in besides), None)


def place(state: ClusterState, first: int, count: int, replication_factor: int) -> tuple[PartitionState, ...]:
    """Assign `count` new partitions, the first being number `first`, round robin over the brokers.

    Raises INVALID_REPLICATION_FACTOR when there are too few brokers.
    """
    brokers = sorted(node_id for node_id, broker in state.brokers.items() if not broker.cordoned)
    if not brokers:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced, or "
            "have all their log directories cordoned.",
        )
    if replication_factor > len(brokers):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(brokers)} broker(s) are registered or some "
            "brokers have all their log directories cordoned.",
        )
    # One object for all that are alike: a topic may have ten thousand partitions, and they are stored alike, too.
    turns = [
        _partition([brokers[(first + i + r) % len(brokers)] for r in range(replication_factor)])
        for i in range(min(count, len(brokers)))
    ]
    return tuple(turns[i % len(turns)] for i in range(count))


def manual(state: ClusterState, assignments: Sequence[Sequence[int]], factor: int | None) -> tuple[PartitionState, ...]:
    """Turn a client's own assignment into partitions; raises INVALID_REPLICA_ASSIGNMENT."""
    partitions = []
    for replicas in assignments:
        check_assignment(state, replicas, factor)
        factor = len(replicas)
        partitions.append(_partition(list(replicas)))
    return tuple(partitions)


def check_assignment(state: ClusterState, replicas: Sequence[int], factor: int | None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for a replica list that cannot be."""
    fault = None
    prefix = "The manual partition assignment includes"
    if not replicas:
        fault = f"{prefix} an empty replica list."
    previous = None
    # Of a list longer than there are brokers, its beginning has something wrong already.
    for broker in sorted(replicas[: len(state.brokers) + 1]):
        if fault is None and broker not in state.brokers:
            fault = f"{prefix} broker {broker}, but no such broker is registered."
        elif fault is None and broker == previous:
            fault = f"{prefix} the broker {broker} more than once."
        previous = broker
    if fault is None and factor is not None and len(replicas) != factor:
        fault = (
            f"{prefix} a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {factor} replica(s)."
        )
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)


def _partition(replicas: list[int]) -> PartitionState:
    return PartitionState(replicas=tuple(replicas), isr=tuple(replicas), leader=replicas[0], leader_epoch=0)

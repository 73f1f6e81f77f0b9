"""The replicas of new partitions on a controller that is alone, and the checks of assignments by clients.

Owns the rules of assignments, with Kafka's codes and texts (ReplicationControlManager). Never stores. In a cluster on
ZooKeeper, placement.py spreads replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cluster_state import ClusterState, PartitionState
from kbroker.protocol.errors import ApiError, ErrorCode


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
    # One object for all equal ones: a topic may have ten thousand partitions, and equal ones are stored once, too.
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
    """Raise INVALID_REPLICA_ASSIGNMENT for an invalid replica list."""
    fault = None
    prefix = "The manual partition assignment includes"
    if not replicas:
        fault = f"{prefix} an empty replica list."
    previous = None
    # A list longer than the number of brokers has a fault in its beginning already.
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

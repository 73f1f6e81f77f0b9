"""The choice of replicas for new partitions, on a single node and in a cluster; the checks of clients' assignments.

Owns the rules of assignments, with Kafka's codes and texts (ReplicationControlManager), and the spread of replicas over
brokers and racks as in Apache Kafka 3.9 (AdminUtils, KIP-36). Chooses nothing at random: the caller passes the first
broker, which is random for a new topic. Never stores, and never considers how full a broker is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from random import Random

from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.protocol.errors import ApiError, ErrorCode


def place(state: ClusterState, first: int, count: int, replication_factor: int) -> tuple[PartitionState, ...]:
    """Assign `count` new partitions, numbered from `first`, on a single node: round robin over the brokers.

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
    # Equal partitions share one object: a topic may have ten thousand partitions, and the store keeps a shared object
    # once.
    turns = [
        _partition([brokers[(first + i + r) % len(brokers)] for r in range(replication_factor)])
        for i in range(min(count, len(brokers)))
    ]
    return tuple(turns[i % len(turns)] for i in range(count))


def manual(state: ClusterState, assignments: Sequence[Sequence[int]], factor: int | None) -> tuple[PartitionState, ...]:
    """Convert a client's own assignment to partitions; raises INVALID_REPLICA_ASSIGNMENT."""
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
    # In a list longer than the number of brokers, the first entries already contain a fault.
    for broker in sorted(replicas[: len(state.brokers) + 1]):
        if fault is None and broker not in state.brokers:
            fault = f"{prefix} broker {broker}, but no such broker is registered."
        elif fault is None and state.brokers[broker].cordoned:
            fault = f"{prefix} broker {broker}, but all its log directories are cordoned."
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


def spread(
    state: ClusterState, first: int, count: int, factor: int, grown: TopicState | None, places: Random
) -> tuple[PartitionState, ...]:
    """Spread `count` new partitions of a new or a `grown` topic over the brokers and racks of a cluster.

    Raises INVALID_REPLICATION_FACTOR when there are too few brokers.
    """
    racks = {each.node_id: each.rack for each in state.brokers.values()}
    if factor > len(racks):
        text = f"Replication factor: {factor} larger than available brokers: {len(racks)}."
        raise ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    start = shift = places.randrange(len(racks))
    if grown is not None:
        head = grown.partitions[0].replicas[0]
        start = shift = next((at for at, each in enumerate(sorted(racks)) if each >= head), 0)
    if len(alternated({each: rack or "" for each, rack in racks.items()})) == 1:
        placed = [tuple(racks)] * count
    else:
        placed = place_replicas(racks, factor, range(first, first + count), start, shift)
    return tuple(PartitionState(each, each, each[0], 0) for each in placed)


def place_replicas(
    racks: Mapping[int, str | None], factor: int, partitions: range, start: int, shift: int
) -> list[tuple[int, ...]]:
    """Return the replicas of each of `partitions` in a cluster, the preferred leader first.

    `racks` contains the brokers to choose from, at least `factor` of them. The first replicas rotate from `start`. The
    other replicas follow at a distance that begins with `shift` and grows with every round. As long as a rack has no
    replica of a partition, no other rack gets a second replica. If any rack is unknown, racks are ignored.
    """
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    rack_of = known if len(known) == len(racks) else dict.fromkeys(racks, "")
    order = alternated(rack_of)
    distance = shift
    placed = []
    for index in partitions:
        if index > 0 and index % len(order) == 0:
            distance += 1
        placed.append(_replicas(order, rack_of, factor, (index + start) % len(order), distance))
    return placed


def alternated(rack_of: Mapping[int, str]) -> list[int]:
    """Return the brokers in an order in which neighbours are in different racks, if possible."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(rack_of):
        by_rack.setdefault(rack_of[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for each in rounds for broker in each if broker is not None]


def _replicas(order: list[int], rack_of: Mapping[int, str], factor: int, first: int, distance: int) -> tuple[int, ...]:
    chosen = [order[first]]
    used = {rack_of[order[first]]}
    all_racks = len(set(rack_of.values()))
    step = distance * all_racks
    while len(chosen) < factor:
        broker = order[(first + 1 + step % (len(order) - 1)) % len(order)]
        step += 1
        if broker not in chosen and (rack_of[broker] not in used or len(used) == all_racks):
            chosen.append(broker)
            used.add(rack_of[broker])
    return tuple(chosen)

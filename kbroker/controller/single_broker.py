"""Partitions on a single broker: the answers to elections and reassignments, and the effect of a lost log directory.

Owns the answers of Kafka's controller to such requests (4.4: ReplicationControlManager): success without a change, or
an error. Also owns a partition's state while its replica is lost, and after the replica is back. An election or
reassignment never changes anything, because there is only one possible leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Final

from kbroker.cluster_state import NO_LEADER, ClusterState, PartitionState
from kbroker.long_work import turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode

Partition = tuple[str, int]
PREFERRED: Final = 0
"""The type of election that makes the first replica the leader; the other type is unclean."""
_AT_ONCE: Final = 100


def without_replica(partition: PartitionState, node_id: int) -> PartitionState:
    """Return the state of a partition that has lost its replica: no leader, and unchanged in-sync replicas."""
    led = partition.leader == node_id
    leader, offline = NO_LEADER if led else partition.leader, (*partition.offline, node_id)
    return replace(partition, leader=leader, leader_epoch=partition.leader_epoch + led, offline=offline)


def with_replica(partition: PartitionState, node_id: int) -> PartitionState:
    """Return the state of a partition whose replica is back: the replica leads, in a new leader epoch."""
    return replace(partition, leader=node_id, leader_epoch=partition.leader_epoch + 1, offline=())


async def elect_leaders(
    state: ClusterState, kind: int, partitions: Iterable[Partition]
) -> dict[Partition, ApiError | None]:
    """Return the error of the election for each partition."""
    results: dict[Partition, ApiError | None] = {}
    for name, index in partitions:
        results[name, index] = _why_not_elected(state, kind, name, index)
        await turn
    return results


def _why_not_elected(state: ClusterState, kind: int, name: str, index: int) -> ApiError:
    topic, partition = state.topics.get(name), state.partition(name, index)
    if topic is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if partition is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if partition.leader != NO_LEADER:
        return _by_default(ErrorCode.ELECTION_NOT_NEEDED)
    if kind == PREFERRED:
        return _by_default(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return _by_default(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)


async def alter_reassignments(
    state: ClusterState, node_id: int, asked: Mapping[Partition, Sequence[int] | None]
) -> dict[Partition, ApiError | None]:
    """Return the error of each partition that cannot move to its target; None if the partition is already there."""
    results: dict[Partition, ApiError | None] = {}
    for (name, index), target in asked.items():
        results[name, index] = await _why_not_moved(state, node_id, (name, index), target)
        await turn
    return results


async def _why_not_moved(
    state: ClusterState, node_id: int, partition: Partition, target: Sequence[int] | None
) -> ApiError | None:
    name, index = partition
    if name not in state.topics:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if state.partition(name, index) is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if target is None:
        return ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    own = state.brokers.get(node_id)
    is_cordoned = own is not None and own.cordoned
    text = await _why_not_there(node_id, target, cordoned=is_cordoned)
    if text is not None:
        return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {text}")
    return None


async def _why_not_there(node_id: int, target: Sequence[int], *, cordoned: bool) -> str | None:
    """Return the fault of a target.

    The two lowest ids suffice: Kafka checks in ascending order, and one id is valid.
    """
    if not target:
        return "an empty replica list."
    lowest: list[int] = []
    for start in range(0, len(target), _AT_ONCE):
        lowest = nsmallest(2, [*lowest, *target[start : start + _AT_ONCE]])
        await turn
    for each in lowest:
        if each != node_id:
            return f"broker {each}, but no such broker is registered."
        if cordoned:
            return f"broker {each}, but all its log directories are cordoned."
    return f"the broker {node_id} more than once." if len(target) > 1 else None


def _by_default(code: ErrorCode) -> ApiError:
    return ApiError(code, DEFAULT_MESSAGES.get(code))

"""The controller's elections of partition leaders, as pure functions.

Owns the five reasons for which the controller itself changes leadership or in-sync replicas. Each function gets a
partition's state, its replicas in order of preference, and the online replicas. Never writes a state; a result of None
means no change. Every change begins a new leader epoch, even with the same leader, so that brokers ignore older
requests. (Apache Kafka 3.9: Election, PartitionStateMachine, KafkaController.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kbroker.cluster_state import NO_LEADER
from kbroker.controller.znodes import LeaderAndIsr


def first_state(replicas: Sequence[int], online: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """Return the state of a new partition: the first online replica leads, and all online replicas are in sync."""
    isr = tuple(each for each in replicas if each in online)
    return LeaderAndIsr(isr[0], 0, isr, controller_epoch) if isr else None


def elect_offline(
    state: LeaderAndIsr, replicas: Sequence[int], online: Collection[int], controller_epoch: int, *, unclean: bool
) -> LeaderAndIsr | None:
    """Elect a leader for an offline partition: the first online replica that is in sync.

    With `unclean`, a replica that is not in sync may lead if no other can; the records that it lacks are lost. This
    replica is then the only in-sync replica, and the partition is recovering until the new leader reports the end of
    recovery.
    """
    leader = _first(replicas, online, state.isr)
    if leader is not None:
        isr = tuple(each for each in state.isr if each in online)
        return _next(state, leader, isr, controller_epoch)
    if unclean and (leader := _first(replicas, online, replicas)) is not None:
        return replace(_next(state, leader, (leader,), controller_epoch), recovering=True)
    return None


def elect_preferred(
    state: LeaderAndIsr, replicas: Sequence[int], online: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Make the first replica the leader, if it is in sync and online."""
    first = replicas[0]
    if first in online and first in state.isr:
        return _next(state, first, state.isr, controller_epoch)
    return None


def elect_of_target(
    state: LeaderAndIsr, target: Sequence[int], online: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Elect a leader from a reassignment's target, which does not include the current leader."""
    leader = _first(target, online, state.isr)
    return None if leader is None else _next(state, leader, state.isr, controller_epoch)


def elect_for_shutdown(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    online: Collection[int],
    leaving: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Elect a remaining in-sync replica, and remove the leaving replicas from the in-sync replicas."""
    isr = tuple(each for each in state.isr if each not in leaving)
    leader = _first(replicas, online, isr)
    return None if leader is None else _next(state, leader, isr, controller_epoch)


def without_replica(state: LeaderAndIsr, replica: int, controller_epoch: int) -> LeaderAndIsr | None:
    """Remove a failed replica from leadership, and from the in-sync replicas if other in-sync replicas remain.

    The last in-sync replica stays in the set, because only this replica can lead again without a loss of records.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    leader = NO_LEADER if replica == state.leader else state.leader
    isr = state.isr if len(state.isr) == 1 else tuple(each for each in state.isr if each != replica)
    return _next(state, leader, isr, controller_epoch)


def in_sync_without(state: LeaderAndIsr, replicas: Collection[int], controller_epoch: int) -> LeaderAndIsr:
    """Remove followers from the in-sync replicas."""
    return _next(state, state.leader, tuple(each for each in state.isr if each not in replicas), controller_epoch)


def unchanged(state: LeaderAndIsr, controller_epoch: int) -> LeaderAndIsr:
    """Begin a new leader epoch with the same leader, because the replicas change."""
    return _next(state, state.leader, state.isr, controller_epoch)


def _first(candidates: Sequence[int], online: Collection[int], isr: Collection[int]) -> int | None:
    return next((each for each in candidates if each in online and each in isr), None)


def _next(state: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr, controller_epoch=controller_epoch
    )

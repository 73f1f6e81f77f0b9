"""Who leads a partition next: the controller's elections, as pure functions.

Owns the five reasons for which leadership or in-sync replicas change by the controller's own decision, each from a
partition's state, its replicas in order of preference, and who is online. Never writes a state; None means that nothing
may change. Every change is a new leader epoch, also where the leader stays, so that no older request of it counts.
(Apache Kafka 3.9: Election, PartitionStateMachine, KafkaController.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from kbroker.cluster_state import NO_LEADER
from kbroker.controller.znodes import LeaderAndIsr


def first_state(replicas: Sequence[int], online: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """Return the state of a new partition: led by the first replica that is online, all of those in sync."""
    isr = tuple(each for each in replicas if each in online)
    return LeaderAndIsr(isr[0], 0, isr, controller_epoch) if isr else None


def elect_offline(
    state: LeaderAndIsr, replicas: Sequence[int], online: Collection[int], controller_epoch: int, *, unclean: bool
) -> LeaderAndIsr | None:
    """Elect for a partition whose leader is gone: the first replica in sync that is online.

    With `unclean`, one that is not in sync rather than none: what it lacks is lost. It alone is in sync then, and the
    partition is recovering until the new leader has said that it is not.
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
    """Give leadership to the first replica, if it is in sync and online."""
    first = replicas[0]
    if first in online and first in state.isr:
        return _next(state, first, state.isr, controller_epoch)
    return None


def elect_of_target(
    state: LeaderAndIsr, target: Sequence[int], online: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Elect among those to whom a partition is being moved: the leader is none of them."""
    leader = _first(target, online, state.isr)
    return None if leader is None else _next(state, leader, state.isr, controller_epoch)


def elect_for_shutdown(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    online: Collection[int],
    leaving: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """Elect somebody in sync who stays, and take those who leave from the in-sync replicas."""
    isr = tuple(each for each in state.isr if each not in leaving)
    leader = _first(replicas, online, isr)
    return None if leader is None else _next(state, leader, isr, controller_epoch)


def without_replica(state: LeaderAndIsr, replica: int, controller_epoch: int) -> LeaderAndIsr | None:
    """Take a replica that went away from leadership and from the in-sync ones, of which the last one stays.

    Whoever was last in sync is the only one who may lead again without losing anything.
    """
    if replica not in state.isr and replica != state.leader:
        return None
    leader = NO_LEADER if replica == state.leader else state.leader
    isr = state.isr if len(state.isr) == 1 else tuple(each for each in state.isr if each != replica)
    return _next(state, leader, isr, controller_epoch)


def unchanged(state: LeaderAndIsr, controller_epoch: int) -> LeaderAndIsr:
    """Begin another leader epoch, where the replicas change and nobody else leads."""
    return _next(state, state.leader, state.isr, controller_epoch)


def _first(candidates: Sequence[int], online: Collection[int], isr: Collection[int]) -> int | None:
    return next((each for each in candidates if each in online and each in isr), None)


def _next(state: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
    return replace(
        state, leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr, controller_epoch=controller_epoch
    )

"""A partition's replicas during a reassignment: the current, added and removed replicas.

Owns the form of these lists in a topic's znode, and the first step of a reassignment (Apache Kafka 3.9:
ReplicaAssignment, KIP-455). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kbroker.controller.znodes import Assignment


@dataclass(frozen=True, slots=True)
class Replicas:
    """A partition's replicas in order of preference, including those that a reassignment adds or removes."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return _without(self.replicas, self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return _without(self.replicas, self.removing)

    @property
    def in_motion(self) -> bool:
        """Whether a reassignment is in progress."""
        return bool(self.adding or self.removing)


def in_transition(current: Replicas, target: Sequence[int]) -> Replicas:
    """Return the replicas during a reassignment to `target`: first the target, then the other original replicas."""
    origin = current.origin
    every = tuple(dict.fromkeys((*target, *origin)))
    return Replicas(every, _without(every, origin), _without(every, target))


def _without(some: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Return the brokers in `some`, in their order, that are not in `others`."""
    excluded = frozenset(others)
    return tuple(each for each in some if each not in excluded)


def of_topic(assignment: Assignment) -> dict[int, Replicas]:
    """Return the replicas of each partition in a topic's znode."""
    return {
        index: Replicas(replicas, assignment.adding.get(index, ()), assignment.removing.get(index, ()))
        for index, replicas in assignment.replicas.items()
    }


def with_partition(assignment: Assignment, index: int, replicas: Replicas) -> Assignment:
    """Return a topic's znode with other replicas of one partition."""
    return replace(
        assignment,
        replicas={**assignment.replicas, index: replicas.replicas},
        adding=_with(assignment.adding, index, replicas.adding),
        removing=_with(assignment.removing, index, replicas.removing),
    )


def _with(held: Mapping[int, tuple[int, ...]], index: int, replicas: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    changed = {**held, index: replicas}
    if not replicas:
        del changed[index]
    return changed

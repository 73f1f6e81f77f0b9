"""A partition's replicas while they are being changed: who is there, who comes, who goes.

Owns what a topic's znode says of them, and what a reassignment begins with (Apache Kafka 3.9: ReplicaAssignment,
KIP-455). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kbroker.controller.znodes import Assignment


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas in order of preference, those who come among them, and those who are to go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[int, ...]:
        """Return those who were there before the reassignment."""
        return _without(self.replicas, self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """Return those who will be there after it."""
        return _without(self.replicas, self.removing)

    @property
    def in_motion(self) -> bool:
        """Whether a reassignment is going on."""
        return bool(self.adding or self.removing)


def on_the_way(current: Replicas, target: Sequence[int]) -> Replicas:
    """Return what a reassignment to `target` begins with: everybody, the target first."""
    origin = current.origin
    everybody = tuple(dict.fromkeys((*target, *origin)))
    return Replicas(everybody, _without(everybody, origin), _without(everybody, target))


def _without(some: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """Return some of the brokers, in their order, but those that are among others."""
    gone = frozenset(others)
    return tuple(each for each in some if each not in gone)


def of_topic(assignment: Assignment) -> dict[int, Replicas]:
    """Return what a topic's znode says of its partitions."""
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

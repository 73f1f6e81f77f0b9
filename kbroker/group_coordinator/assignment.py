"""Assignments of partitions to members: sets of partitions by topic id, and an assignor's input and result.

Owns these immutable values, which groups and assignors share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Partitions = Mapping[bytes, frozenset[int]]
"""Partition numbers by topic id."""
Epochs = Mapping[bytes, Mapping[int, int]]
"""The epoch at which each partition was assigned, by topic id and partition."""


def with_epochs(partitions: Partitions, epoch: int) -> Epochs:
    """Return partitions that were all assigned at one epoch."""
    return {topic_id: dict.fromkeys(indexes, epoch) for topic_id, indexes in partitions.items()}


def copied(partitions: Partitions) -> dict[bytes, set[int]]:
    """Return a mutable copy of partitions."""
    return {topic_id: set(indexes) for topic_id, indexes in partitions.items()}


def frozen(partitions: Mapping[bytes, set[int] | frozenset[int]]) -> Partitions:
    """Return partitions in their immutable form; topics without partitions are left out."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items() if indexes}


def without_epochs(epochs: Epochs) -> Partitions:
    """Return partitions without their epochs."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in epochs.items()}


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member: the ids of its subscribed topics, its current target, its instance id and its rack."""

    topics: frozenset[bytes]
    assigned: Partitions
    instance_id: str | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group: its members, in Java's order, and whether all members subscribe to the same topics."""

    members: Mapping[str, MemberSpec]
    homogeneous: bool
    partitions: Mapping[bytes, int]
    """The number of partitions of each subscribed topic."""


Assignment = dict[str, Partitions]
Assign = Callable[[GroupSpec], Assignment]

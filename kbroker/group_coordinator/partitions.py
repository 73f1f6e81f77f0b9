"""Sets of partitions by topic id, for groups and assignors: immutable values."""

from __future__ import annotations

from collections.abc import Mapping

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
    """Return partitions in their immutable form, without topics that have none."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items() if indexes}


def without_epochs(epochs: Epochs) -> Partitions:
    """Return partitions without their epochs."""
    return {topic_id: frozenset(indexes) for topic_id, indexes in epochs.items()}

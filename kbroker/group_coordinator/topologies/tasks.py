"""Tasks of Kafka Streams: a partition of a subtopology, as an active task, a standby or a warm-up.

Owns the immutable values that streams groups and their assignor share: the tasks that a member is to have, and the
tasks that it has. An active task that a member has keeps the epoch at which it was assigned (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Tasks = Mapping[str, frozenset[int]]
"""Partitions by subtopology id."""
ActiveTasks = Mapping[str, Mapping[int, int]]
"""The epoch at which each partition was assigned, by subtopology id and partition."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """The tasks of a target, or the tasks that a member claims to own."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def contains_any(self, held: HeldTasks) -> bool:
        """Return whether any of these tasks is among `held`, in the same role."""
        return _meet(self.active, held.active) or _meet(self.standby, held.standby) or _meet(self.warmup, held.warmup)

    def within(self, held: HeldTasks) -> bool:
        """Return whether all of these tasks are among `held`, in the same role."""
        return (
            _is_within(self.active, held.active)
            and _is_within(self.standby, held.standby)
            and _is_within(self.warmup, held.warmup)
        )


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The tasks that a member has, or must still revoke."""

    active: ActiveTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def with_epoch_zero(self) -> HeldTasks:
        """Return the same tasks with the assignment epoch 0, for a static member that has left for a while."""
        active = {subtopology: dict.fromkeys(held, 0) for subtopology, held in self.active.items()}
        return HeldTasks(active, self.standby, self.warmup)


NO_TASKS = TaskSet()
NOTHING_HELD = HeldTasks()


def _meet(tasks: Tasks, held: Mapping[str, Iterable[int]]) -> bool:
    return any(subtopology in held and not tasks[subtopology].isdisjoint(held[subtopology]) for subtopology in tasks)


def _is_within(tasks: Tasks, held: Mapping[str, Mapping[int, int] | frozenset[int]]) -> bool:
    return all(all(each in held.get(subtopology, ()) for each in indexes) for subtopology, indexes in tasks.items())

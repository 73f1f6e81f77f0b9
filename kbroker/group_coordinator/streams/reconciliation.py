"""Moves a streams group's member step by step from its current tasks to its target's tasks.

Owns one step (Kafka's CurrentAssignmentBuilder). A member first gives up tasks, and confirms that it has done so.
Meanwhile it keeps its epoch. Then it gets the target's epoch and the free tasks. With later heartbeats it gets the
tasks that other members have given up. No active task ever has two owners, and no process has a task twice. A standby
that becomes active stays a standby until the task is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.groups.streams_member import STABLE, UNKNOWN, UNRELEASED, UNREVOKED, StreamsMember
from kbroker.group_coordinator.topologies.tasks import NOTHING_HELD, HeldTasks, TaskSet
from kbroker.protocol.errors import ApiError, ErrorCode

Task = tuple[str, int]
Owned = TaskSet | None
"""The tasks that a member claims to own; None if the member's request has a null list."""


def reconcile(group: StreamsGroup, member: StreamsMember, epoch: int, target: TaskSet, owned: Owned) -> StreamsMember:
    """Return the member one step closer to the target of `epoch`, or unchanged. Raises FENCED_MEMBER_EPOCH."""
    if member.is_reconciled_to(epoch):
        return member
    member_epoch = member.member_epoch
    if member.state is UNREVOKED:
        if _has_not_released(owned, member.pending_revocation):
            return member
        member_epoch += 1
    elif member.state is UNKNOWN:
        if owned is None or not owned.is_empty:
            raise ApiError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
            )
        member_epoch = epoch
    return _Step(group, member, target, owned).taken(member_epoch, epoch)


def _has_not_released(owned: Owned, pending: HeldTasks) -> bool:
    return owned is None or owned.contains_any(pending)


@dataclass(slots=True)
class _Role:
    """The tasks of one role: the tasks to keep, the tasks to give up, and the tasks to get."""

    kept: set[Task]
    revoked: set[Task]
    new: set[Task]
    waits: bool
    """Whether the member waits for a task of the target that is not free."""


class _Step:
    """One step of a member."""

    def __init__(self, group: StreamsGroup, member: StreamsMember, target: TaskSet, owned: Owned) -> None:
        self._group = group
        self._member = member
        self._process = member.process_id
        self._owned = owned
        self._active = set(_tasks(member.assigned.active))
        self._standby = set(_tasks(member.assigned.standby))
        self._warmup = set(_tasks(member.assigned.warmup))
        self._target_active = set(_tasks(target.active))
        self._target = target

    def taken(self, member_epoch: int, epoch: int) -> StreamsMember:
        """Return the member after the step."""
        active = _role(self._active, self._target_active, self._active_is_taken)
        standby = _role(self._standby, set(_tasks(self._target.standby)), self._standby_is_taken)
        warmup = _role(self._warmup, set(_tasks(self._target.warmup)), self._warmup_is_taken)
        _grant(self._active & standby.new, standby)
        _convert(self._standby, standby, warmup)
        _convert(self._warmup, warmup, standby)
        standby.revoked -= self._target_active
        warmup.revoked -= self._target_active
        revoked = self._held(active.revoked, standby.revoked, warmup.revoked, epoch)
        must_revoke = not revoked.is_empty and _has_not_released(self._owned, revoked)
        promoted = set[Task]() if must_revoke else active.new
        standby.kept |= self._standby & self._target_active - promoted
        warmup.kept |= self._warmup & self._target_active - promoted
        if must_revoke:
            kept = self._held(active.kept, standby.kept, warmup.kept, epoch)
            member = self._member.at_epoch(member_epoch)
            return replace(member, state=UNREVOKED, assigned=kept, pending_revocation=revoked)
        has = self._held(active.kept | active.new, standby.kept | standby.new, warmup.kept | warmup.new, epoch)
        waits = active.waits or standby.waits or warmup.waits
        member = self._member.at_epoch(epoch)
        return replace(member, state=UNRELEASED if waits else STABLE, assigned=has, pending_revocation=NOTHING_HELD)

    def _held(self, active: set[Task], standby: set[Task], warmup: set[Task], epoch: int) -> HeldTasks:
        since: dict[str, dict[int, int]] = {}
        held = self._member.assigned.active
        for subtopology, index in active:
            since.setdefault(subtopology, {})[index] = held.get(subtopology, {}).get(index, epoch)
        return HeldTasks(since, _by_subtopology(standby), _by_subtopology(warmup))

    # -- Whether a task is not free. A process that runs a task in one role cannot take it over in another member.

    def _active_is_taken(self, task: Task) -> bool:
        return (
            self._group.active_process(*task) is not None
            or self._is_standby_of_another_here(task)
            or self._is_warmup_of_another_here(task)
        )

    def _standby_is_taken(self, task: Task) -> bool:
        runs_here = self._group.active_process(*task) == self._process and task not in self._active
        return runs_here or self._group.is_standby_of(self._process, *task) or self._is_warmup_of_another_here(task)

    def _warmup_is_taken(self, task: Task) -> bool:
        return (
            self._group.active_process(*task) == self._process
            or self._is_standby_of_another_here(task)
            or self._group.is_warmup_of(self._process, *task)
        )

    def _is_standby_of_another_here(self, task: Task) -> bool:
        return self._group.is_standby_of(self._process, *task) and task not in self._standby

    def _is_warmup_of_another_here(self, task: Task) -> bool:
        return self._group.is_warmup_of(self._process, *task) and task not in self._warmup


def _role(held: set[Task], target: set[Task], is_taken: Callable[[Task], bool]) -> _Role:
    wanted = target - held
    free = {task for task in wanted if not is_taken(task)}
    return _Role(held & target, held - target, free, len(free) < len(wanted))


def _grant(tasks: set[Task], role: _Role) -> None:
    """Give tasks immediately, even if the member still has to give up other tasks."""
    role.new -= tasks
    role.kept |= tasks


def _convert(held: set[Task], old: _Role, new: _Role) -> None:
    """Let tasks change between standby and warm-up immediately, because the member already has their state."""
    converted = held & new.new
    _grant(converted, new)
    old.revoked -= converted


def _tasks(tasks: Mapping[str, Iterable[int]]) -> Iterable[Task]:
    return ((subtopology, index) for subtopology, indexes in tasks.items() for index in indexes)


def _by_subtopology(tasks: Iterable[Task]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for subtopology, index in tasks:
        found.setdefault(subtopology, set()).add(index)
    return {subtopology: frozenset(indexes) for subtopology, indexes in found.items()}

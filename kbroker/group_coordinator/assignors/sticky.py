"""The assignor "sticky" of streams groups: members keep their tasks, and the load of processes stays even.

Owns the assignment of active tasks and of standbys (Kafka's StickyTaskAssignor and ProcessState). The result equals
Kafka's even where several assignments would be equally good. The time is near-linear in members and tasks. Like
Kafka's, this assignor assigns no warm-ups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.group_coordinator.java_heap import JavaHeap
from kbroker.group_coordinator.java_order import computed_in_java_order, in_java_order
from kbroker.group_coordinator.topologies.tasks import ActiveTasks, Tasks, TaskSet

Task = tuple[str, int]
"""A subtopology's id and a partition."""
Offsets = Mapping[str, Mapping[int, int]]
"""The offset up to which a member has restored each task, by subtopology id and partition."""


@dataclass(frozen=True, slots=True)
class TaskMember:
    """One member: the id of its process, its tasks, and the offset to which it has restored each task."""

    process_id: str
    active: ActiveTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)


class Subtasks(NamedTuple):
    """The number of tasks of a subtopology, and whether the tasks have state."""

    tasks: int
    stateful: bool


class _Place(NamedTuple):
    """A member and its process."""

    process: _Process
    member_id: str


class _Process:
    """A process of the application: its members (threads) and their tasks."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.active: dict[str, set[Task]] = {}
        self.standby: dict[str, set[Task]] = {}
        self.tasks: set[Task] = set()
        self.load = 0.0
        self._size = 0
        self._by_load: JavaHeap[str] | None = None

    def has_room(self, member_id: str, quota: int) -> bool:
        return self.counts[member_id] < quota

    def add(self, member_id: str, task: Task, *, active: bool) -> int:
        """Give a member a task; return the number of its tasks."""
        self._by_load = None
        return self._add(member_id, task, active=active)

    def add_to_least_loaded(self, task: Task, *, active: bool) -> int:
        """Give one more task to the member with the fewest tasks; return the number of the member's tasks."""
        if len(self.counts) == 1:
            return self._add(next(iter(self.counts)), task, active=active)
        if self._by_load is None:
            self._by_load = JavaHeap(in_java_order(self.counts), self.counts.__getitem__)
        member_id = self._by_load.poll()
        count = self._add(member_id, task, active=active)
        self._by_load.add(member_id)
        return count

    def _add(self, member_id: str, task: Task, *, active: bool) -> int:
        self._size += 1
        self.tasks.add(task)
        (self.active if active else self.standby).setdefault(member_id, set()).add(task)
        self.counts[member_id] += 1
        self.load = self._size / len(self.counts)
        return self.counts[member_id]


class _Quota:
    """The maximum number of tasks per member.

    When a member reaches the maximum, the maximum is computed again for the remaining members.
    """

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.most = _share(tasks, members)

    def count(self, tasks: int) -> None:
        """Record that a member now has this number of tasks."""
        if tasks == self.most:
            self._members -= 1
            self._tasks -= tasks
            self.most = _share(self._tasks, self._members)


def _share(tasks: int, members: int) -> int:
    return -(-tasks // members) if members else 0


def sticky(
    members: Mapping[str, TaskMember], subtopologies: Mapping[str, Subtasks], standbys: int
) -> dict[str, TaskSet]:
    """Return each member's tasks. `members` are in any order; `standbys` is the number of standbys of each task."""
    return _Assignment(members, subtopologies, standbys).result()


class _Assignment:
    """One run of the assignor."""

    def __init__(self, members: Mapping[str, TaskMember], subtopologies: Mapping[str, Subtasks], standbys: int) -> None:
        ids = in_java_order(members)
        self._ids = ids
        self._standbys = standbys
        total = sum(each.tasks for each in subtopologies.values())
        copies = sum(each.tasks * standbys for each in subtopologies.values() if each.stateful)
        self._active_quota = _Quota(total, len(ids))
        self._quota = _Quota(total + copies, len(ids))
        processes: dict[str, _Process] = {}
        self._owners: dict[Task, _Place] = {}
        candidates: dict[Task, list[tuple[int, int, _Place]]] = {}
        for member_id in ids:
            member = members[member_id]
            place = _Place(processes.setdefault(member.process_id, _Process()), member_id)
            place.process.counts[member_id] = 0
            for subtopology, indexes in member.active.items():
                for index in indexes:
                    self._owners[subtopology, index] = place
            for task, rank in _restored(member):
                candidates.setdefault(task, []).append((*rank, place))
        called = computed_in_java_order((members[each].process_id for each in ids), len(ids))
        self._processes = [processes[each] for each in called]
        self._keepers = {
            task: [place for _, _, place in sorted(found, key=lambda each: each[:2])]
            for task, found in candidates.items()
        }
        tasks = [(name, index) for name, each in subtopologies.items() for index in range(each.tasks)]
        self._assign_active(tasks)
        if standbys:
            self._assign_standbys([task for task in tasks if subtopologies[task[0]].stateful])

    def result(self) -> dict[str, TaskSet]:
        """Return each member's tasks."""
        active: dict[str, set[Task]] = {}
        standby: dict[str, set[Task]] = {}
        for process in self._processes:
            active.update(process.active)
            standby.update(process.standby)
        return {
            member_id: TaskSet(_by_subtopology(active.get(member_id, ())), _by_subtopology(standby.get(member_id, ())))
            for member_id in self._ids
        }

    def _count(self, tasks: int) -> None:
        self._active_quota.count(tasks)
        self._quota.count(tasks)

    # -- active tasks

    def _assign_active(self, tasks: list[Task]) -> None:
        """Leave tasks at their owners.

        Give the other tasks to members that had their standbys, or to the least loaded processes.
        """
        left = sorted(tasks, key=lambda task: (task[1], task[0]))
        left = [task for task in left if not self._keep(task, self._owners.get(task))]
        left = [task for task in left if not self._keep(task, self._least_loaded(self._keepers.get(task, ())))]
        queue = JavaHeap(self._processes, lambda process: process.load)
        for task in sorted(left):
            process = queue.poll()
            self._count(process.add_to_least_loaded(task, active=True))
            queue.add(process)

    def _keep(self, task: Task, place: _Place | None) -> bool:
        if place is None or not place.process.has_room(place.member_id, self._active_quota.most):
            return False
        self._count(place.process.add(place.member_id, task, active=True))
        return True

    @staticmethod
    def _least_loaded(places: Iterable[_Place], without: Task | None = None) -> _Place | None:
        """Choose a place as Kafka does: a later place replaces the choice if it has less load and fewer tasks."""
        found: _Place | None = None
        load = count = 0.0
        for place in places:
            if without is not None and without in place.process.tasks:
                continue
            own = place.process.load, place.process.counts[place.member_id]
            if found is None or (own[0] < load and own[1] < count):
                found, (load, count) = place, own
        return found

    # -- standbys

    def _assign_standbys(self, tasks: list[Task]) -> None:
        """Leave standbys where the task's state is; then place the other standbys in the least loaded processes."""
        left = []
        for task in sorted(tasks, key=lambda task: (task[1], task[0]), reverse=True):
            placed = 0
            while placed < self._standbys and self._place_near_state(task):
                placed += 1
            if placed < self._standbys:
                left.append((task, self._standbys - placed))
        queue = JavaHeap(self._processes, lambda process: process.load)
        for task, missing in sorted(left, reverse=True):
            for _ in range(missing):
                if not self._place_where_least_load(queue, task):
                    break

    def _place_near_state(self, task: Task) -> bool:
        """Place a standby at the task's last owner, or else at a member that has restored the task.

        Return False if none of these members can take the standby.
        """
        place = self._owners.get(task)
        if (
            place is None
            or task in place.process.tasks
            or not place.process.has_room(place.member_id, self._quota.most)
        ):
            place = self._least_loaded(self._keepers.get(task, ()), without=task)
            if place is None or not place.process.has_room(place.member_id, self._quota.most):
                return False
        self._quota.count(place.process.add(place.member_id, task, active=False))
        return True

    def _place_where_least_load(self, queue: JavaHeap[_Process], task: Task) -> bool:
        """Place a standby in the least loaded process without the task; return whether there is such a process."""
        passed: list[_Process] = []
        found = False
        while queue and not found:
            process = queue.poll()
            passed.append(process)
            if task not in process.tasks:
                self._quota.count(process.add_to_least_loaded(task, active=False))
                found = True
        for process in reversed(passed):
            queue.add(process)
        return found


def _restored(member: TaskMember) -> Iterable[tuple[Task, tuple[int, int]]]:
    """Yield the tasks that a member has restored, each with its rank: standbys first, then by the restored offset."""
    for subtopology, indexes in member.standby.items():
        offsets = member.offsets.get(subtopology, {})
        for index in indexes:
            yield (subtopology, index), (0, -offsets.get(index, 0))
    for subtopology, restored in member.offsets.items():
        standby = member.standby.get(subtopology, frozenset())
        for index, offset in restored.items():
            if index not in standby:
                yield (subtopology, index), (1, -offset)


def _by_subtopology(tasks: Iterable[Task]) -> Tasks:
    found: dict[str, set[int]] = {}
    for subtopology, index in tasks:
        found.setdefault(subtopology, set()).add(index)
    return {subtopology: frozenset(found[subtopology]) for subtopology in sorted(found)}

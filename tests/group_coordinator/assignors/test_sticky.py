"""The sticky assignor of streams groups: every task once, balanced, sticky; the same results as Apache Kafka's."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.harness.jvm import BRIEF
from kbroker.group_coordinator.assignors.sticky import Subtasks, TaskMember, sticky
from kbroker.group_coordinator.java_heap import JavaHeap
from kbroker.group_coordinator.topologies.tasks import Tasks, TaskSet
from tests.tries import tries

SEED = 20261128
PROGRAM = Path(__file__).parent / "RunStickyAssignor.java"
Group = tuple[dict[str, TaskMember], dict[str, Subtasks], int]


def owners(assignment: Mapping[str, TaskSet]) -> dict[tuple[str, int], str]:
    """Return the owner of each active task; no task has two."""
    found: dict[tuple[str, int], str] = {}
    for member_id, tasks in assignment.items():
        for name, indexes in tasks.active.items():
            for index in indexes:
                assert (name, index) not in found
                found[name, index] = member_id
    return found


def after(members: Mapping[str, TaskMember], assignment: Mapping[str, TaskSet]) -> dict[str, TaskMember]:
    """Return members that own everything that was assigned to them."""
    return {
        member_id: TaskMember(
            member.process_id,
            {name: dict.fromkeys(indexes, 1) for name, indexes in assignment[member_id].active.items()},
            assignment[member_id].standby,
        )
        for member_id, member in members.items()
    }


@st.composite
def groups(draw: st.DrawFn) -> Group:
    subtopologies = {
        str(number): Subtasks(draw(st.integers(1, 9)), draw(st.booleans())) for number in range(draw(st.integers(1, 4)))
    }
    members = {
        name: TaskMember(draw(st.sampled_from("pqrs")))
        for name in draw(st.lists(st.text("abcdef", min_size=1, max_size=5), min_size=1, max_size=7, unique=True))
    }
    return members, subtopologies, draw(st.integers(0, 2))


@given(groups())
@settings(max_examples=tries(200))
def test_every_task_goes_once_to_somebody_and_standbys_to_other_processes(group: Group) -> None:
    members, subtopologies, standbys = group
    assignment = sticky(members, subtopologies, standbys)
    active = owners(assignment)
    assert active.keys() == {(name, index) for name, each in subtopologies.items() for index in range(each.tasks)}
    processes = {member.process_id for member in members.values()}
    for task in active:
        name, index = task
        copies = [m for m, tasks in assignment.items() if index in tasks.standby.get(name, ())]
        held = [members[each].process_id for each in [active[task], *copies]]
        assert len(set(held)) == len(held), "a process has a task twice"
        wanted = standbys if subtopologies[name].stateful else 0
        assert len(copies) == min(wanted, len(processes) - 1)


@given(groups())
@settings(max_examples=tries(200))
def test_nothing_moves_without_need(group: Group) -> None:
    members, subtopologies, _ = group
    assignment = sticky(members, subtopologies, 0)
    assert sticky(after(members, assignment), subtopologies, 0) == assignment


@given(st.integers(1, 40), st.integers(1, 9))
def test_members_of_processes_alike_have_tasks_alike(tasks: int, size: int) -> None:
    members = {f"m{number}": TaskMember(f"p{number}") for number in range(size)}
    loads = [sum(map(len, each.active.values())) for each in sticky(members, {"0": Subtasks(tasks, False)}, 0).values()]
    assert max(loads) - min(loads) <= 1


def test_a_standby_becomes_active_where_its_owner_leaves() -> None:
    members = {name: TaskMember(name) for name in "abc"}
    first = sticky(members, {"0": Subtasks(3, True)}, 1)
    left = after(members, first)
    del left["a"]
    (task,) = first["a"].active["0"]
    (heir,) = [name for name in "bc" if task in first[name].standby["0"]]
    assert task in sticky(left, {"0": Subtasks(3, True)}, 1)[heir].active["0"]


@given(st.lists(st.integers(0, 5)))
def test_the_heap_gives_the_least_first(keys: list[int]) -> None:
    heap = JavaHeap(list(enumerate(keys)), lambda each: each[1])
    assert [heap.poll()[1] for _ in keys] == sorted(keys)
    assert not heap


# -- against Apache Kafka's own


def random_group(rng: random.Random) -> Group:
    subtopologies = {str(n): Subtasks(rng.randint(1, 12), rng.random() < 0.6) for n in range(rng.randint(1, 12))}
    tasks = [(name, index) for name, each in subtopologies.items() for index in range(each.tasks)]
    names = [f"{rng.choice(['m', 'stream', 'x'])}-{rng.getrandbits(40):x}" for _ in range(rng.randint(1, 25))]
    processes = [f"process-{rng.getrandbits(32):x}" for _ in range(rng.randint(1, len(names)))]
    held = rng.random()

    def some(share: float) -> list[tuple[str, int]]:
        return [task for task in tasks if rng.random() < share / len(names)]

    def by_name(found: list[tuple[str, int]]) -> Tasks:
        return {name: frozenset(index for n, index in found if n == name) for name in {n for n, _ in found}}

    members = {}
    free = [task for task in tasks if rng.random() < held]
    for name in names:
        own = [task for task in free if rng.random() < 1 / len(names)]
        free = [task for task in free if task not in own]
        offsets: dict[str, dict[int, int]] = {}
        for subtopology, index in some(1.5):
            offsets.setdefault(subtopology, {})[index] = rng.randint(0, 3)
        active = {n: dict.fromkeys(indexes, 1) for n, indexes in by_name(own).items()}
        members[name] = TaskMember(rng.choice(processes), active, by_name(some(1.5 * held)), offsets)
    return members, subtopologies, rng.randint(0, 3)


def lines(group: Group) -> Iterator[str]:
    members, subtopologies, standbys = group
    for name, each in subtopologies.items():
        yield f"subtopology|{name}|{each.tasks}|{int(each.stateful)}"
    for member_id, member in members.items():
        active = ",".join(f"{n}:{i}" for n, held in member.active.items() for i in held)
        standby = ",".join(f"{n}:{i}" for n, held in member.standby.items() for i in held)
        offsets = ",".join(f"{n}:{i}:{o}" for n, held in member.offsets.items() for i, o in held.items())
        yield f"member|{member_id}|{member.process_id}|{active}|{standby}|{offsets}"
    yield f"assign|{standbys}"


def printed(assignment: Mapping[str, TaskSet]) -> str:
    def one(tasks: Tasks) -> str:
        return "".join(f"{name}{sorted(tasks[name])}" for name in sorted(tasks))

    return "".join(f"{m}|{one(assignment[m].active)}|{one(assignment[m].standby)} " for m in sorted(assignment))


@pytest.mark.java
def test_apache_kafkas_assignor_decides_alike(kafka_libs: Path) -> None:
    rng = random.Random(SEED)
    cases = [random_group(rng) for _ in range(500)]
    text = "".join(f"{line}\n" for group in cases for line in lines(group))
    command = ["java", *BRIEF, "-cp", f"{kafka_libs}/*", str(PROGRAM)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(cases)
    for number, (group, their) in enumerate(zip(cases, theirs, strict=True)):
        assert printed(sticky(*group)) == their, f"seed {SEED}, case {number}"

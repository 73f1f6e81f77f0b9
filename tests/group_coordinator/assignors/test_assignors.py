"""The assignors: every partition once, only subscribed ones, balanced, sticky; the same results as Apache Kafka's."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.harness.jvm import BRIEF
from kbroker.group_coordinator.assignment import Assign, Assignment, GroupSpec, MemberSpec
from kbroker.group_coordinator.assignors.range import range_assignor
from kbroker.group_coordinator.assignors.uniform import uniform
from kbroker.group_coordinator.config import ASSIGNORS, assignor_names
from kbroker.group_coordinator.java_order import in_java_order
from tests.tries import tries

SEED = 20261121
PROGRAM = Path(__file__).parent / "RunAssignors.java"
T, U, V = b"t" * 16, b"u" * 16, b"v" * 16


def spec_of(
    subscriptions: Mapping[str, frozenset[bytes]],
    counts: Mapping[bytes, int],
    held: Assignment | None = None,
    instances: Mapping[str, str] | None = None,
) -> GroupSpec:
    homogeneous = len(set(subscriptions.values())) <= 1
    members = {
        name: MemberSpec(subscriptions[name], (held or {}).get(name, {}), (instances or {}).get(name))
        for name in in_java_order(subscriptions)
    }
    return GroupSpec(members, homogeneous, counts)


def loads(assignment: Assignment) -> dict[str, int]:
    return {name: sum(map(len, partitions.values())) for name, partitions in assignment.items()}


def check(spec: GroupSpec, assignment: Assignment) -> None:
    """Check what holds for any assignment: each subscribed partition once, and only to a subscriber."""
    owners: dict[tuple[bytes, int], str] = {}
    for name, partitions in assignment.items():
        for topic_id, indexes in partitions.items():
            assert topic_id in spec.members[name].topics
            for index in indexes:
                assert 0 <= index < spec.partitions[topic_id]
                assert (topic_id, index) not in owners
                owners[topic_id, index] = name
    wanted = {topic_id for member in spec.members.values() for topic_id in member.topics}
    assert len(owners) == sum(spec.partitions[topic_id] for topic_id in wanted)


names = st.text("abcdefgh-0123456789", min_size=1, max_size=12)
topic_ids = st.binary(min_size=16, max_size=16)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, frozenset[bytes]], dict[bytes, int]]:
    """Generate a group: its members' subscriptions, and the number of partitions of each topic."""
    topics = draw(st.lists(topic_ids, min_size=1, max_size=5, unique=True))
    counts = {topic_id: draw(st.integers(1, 12)) for topic_id in topics}
    members = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    if draw(st.booleans()):
        return dict.fromkeys(members, frozenset(topics)), counts
    return {name: frozenset(draw(st.sets(st.sampled_from(topics)))) for name in members}, counts


@given(groups(), groups(), st.sampled_from([uniform, range_assignor]))
@settings(max_examples=tries(300))
def test_every_partition_goes_once_to_somebody_who_wants_it(
    before: tuple[dict[str, frozenset[bytes]], dict[bytes, int]],
    now: tuple[dict[str, frozenset[bytes]], dict[bytes, int]],
    assign: Assign,
) -> None:
    subscriptions, counts = before
    first = spec_of(subscriptions, counts)
    held = assign(first)
    check(first, held)
    # Members have left, others have joined, and topics have changed as well.
    kept = {name: topics for number, (name, topics) in enumerate(subscriptions.items()) if number % 2}
    later = {**now[0], **kept}
    grown = {topic_id: max(count, counts.get(topic_id, 0)) for topic_id, count in now[1].items()}
    second = spec_of(later, {**counts, **grown}, {name: held[name] for name in kept if name in held})
    check(second, assign(second))


@given(groups(), st.data())
@settings(max_examples=tries(300))
def test_targets_that_make_no_sense_end_with_the_next_one(
    group: tuple[dict[str, frozenset[bytes]], dict[bytes, int]], data: st.DataObject
) -> None:
    subscriptions, counts = group
    some = st.dictionaries(st.sampled_from(sorted(counts)), st.frozensets(st.integers(-2, 14), max_size=14))
    held: Assignment = {name: data.draw(some, f"what {name} has") for name in subscriptions}
    spec = spec_of(subscriptions, counts, held)
    check(spec, uniform(spec))


@given(groups())
@settings(max_examples=tries(300))
def test_uniform_is_balanced_and_stays_as_it_is(group: tuple[dict[str, frozenset[bytes]], dict[bytes, int]]) -> None:
    subscriptions, counts = group
    spec = spec_of(subscriptions, counts)
    held = uniform(spec)
    load = loads(held)
    for name, partitions in held.items():
        for topic_id in partitions:
            others = [load[other] for other in subscriptions if topic_id in subscriptions[other]]
            assert load[name] - min(others) <= 1, "a partition could go to somebody who has less"
    assert uniform(spec_of(subscriptions, counts, held)) == held


@given(st.integers(1, 40), st.integers(1, 9))
def test_uniform_moves_no_more_than_it_must(partitions: int, members: int) -> None:
    subscriptions = {f"m{number}": frozenset([T]) for number in range(members)}
    held = uniform(spec_of(subscriptions, {T: partitions}))
    more = {**subscriptions, "new": frozenset([T])}
    after = uniform(spec_of(more, {T: partitions}, held))
    moved = sum(len(held[name].get(T, frozenset()) - after[name].get(T, frozenset())) for name in subscriptions)
    assert moved == loads(after)["new"], "only what the new member has was taken from anybody"


@given(st.integers(1, 30), st.integers(1, 8))
def test_range_gives_neighbours_and_the_same_of_topics_alike(partitions: int, members: int) -> None:
    subscriptions = {f"m{number}": frozenset([T, U]) for number in range(members)}
    for assigned in range_assignor(spec_of(subscriptions, {T: partitions, U: partitions})).values():
        indexes = sorted(assigned.get(T, frozenset()))
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
        assert assigned.get(T) == assigned.get(U)


def test_range_goes_by_instance_ids() -> None:
    subscriptions = dict.fromkeys(["a", "b", "c", "d"], frozenset([T]))
    instances = {"c": "1", "b": "2"}
    assignment = range_assignor(spec_of(subscriptions, {T: 4}, instances=instances))
    assert {name: set(partitions[T]) for name, partitions in assignment.items()} == {
        "c": {0}, "b": {1}, "a": {2}, "d": {3},
    }  # fmt: skip


def test_who_subscribes_to_nothing_gets_nothing() -> None:
    for assign in (uniform, range_assignor):
        assert not any(assign(spec_of({"a": frozenset(), "b": frozenset()}, {})).values())
        mixed = assign(spec_of({"a": frozenset(), "b": frozenset([T])}, {T: 3}))
        assert loads(mixed) == {"a": 0, "b": 3}
        assert assign(GroupSpec({}, True, {})) == {}


def test_names_of_assignors() -> None:
    package = "org.apache.kafka.coordinator.group.assignor"
    assert assignor_names(["range", f"{package}.UniformAssignor"]) == ("range", "uniform")
    with pytest.raises(ValueError, match="mine is no assignor of this broker"):
        assignor_names(["mine"])


# -- against Apache Kafka's own


def random_group(rng: random.Random) -> GroupSpec:
    counts = {rng.randbytes(16): rng.randint(1, 40) for _ in range(rng.randint(1, 20))}
    topics = list(counts)
    members = [f"{rng.choice(['consumer', 'm', 'π'])}-{rng.getrandbits(40):x}" for _ in range(rng.randint(1, 30))]
    everything = frozenset(topics)
    if rng.random() < 0.5:
        subscriptions = dict.fromkeys(members, everything)
    else:
        subscriptions = {name: frozenset(rng.sample(topics, rng.randint(0, len(topics)))) for name in members}
    held: dict[str, dict[bytes, set[int]]] = {name: {} for name in members}
    for topic_id, count in counts.items():
        for index in range(count):
            if rng.random() < 0.7:
                held[rng.choice(members[: rng.randint(1, len(members))])].setdefault(topic_id, set()).add(index)
    frozen = {name: {t: frozenset(p) for t, p in partitions.items()} for name, partitions in held.items()}
    instances = {name: f"i{number}" for number, name in enumerate(members) if rng.random() < 0.3}
    return spec_of(subscriptions, counts, frozen, instances)


def lines(spec: GroupSpec, assignor: str) -> Iterator[str]:
    for topic_id, count in spec.partitions.items():
        yield f"topic|{topic_id.hex()}|{count}"
    for name, member in spec.members.items():
        held = ";".join(f"{t.hex()}:{','.join(map(str, sorted(p)))}" for t, p in sorted(member.assigned.items()))
        topics = ",".join(topic_id.hex() for topic_id in sorted(member.topics))
        yield f"member|{name}|{member.instance_id or ''}|{topics}|{held}"
    yield f"assign|{assignor}|{int(spec.homogeneous)}"


def printed(assignment: Assignment) -> str:
    def one(partitions: Mapping[bytes, frozenset[int]]) -> str:
        return "".join(f"{t.hex()}{sorted(p)}" for t, p in sorted(partitions.items()) if p)

    by_utf16 = sorted(assignment.items(), key=lambda item: item[0].encode("utf-16-be"))
    return "".join(f"{name}|{one(partitions)} " for name, partitions in by_utf16)


@pytest.mark.java
def test_apache_kafkas_assignors_decide_alike(kafka_libs: Path) -> None:
    rng = random.Random(SEED)
    cases = [(random_group(rng), rng.choice(list(ASSIGNORS))) for _ in range(400)]
    text = "".join(f"{line}\n" for spec, name in cases for line in lines(spec, name))
    command = ["java", *BRIEF, "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    command += ["-cp", f"{kafka_libs}/*", str(PROGRAM)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(cases)
    for number, ((spec, name), their) in enumerate(zip(cases, theirs, strict=True)):
        ours = printed(ASSIGNORS[name](spec))
        assert ours == their, f"seed {SEED}, case {number}: {name}, homogeneous: {spec.homogeneous}"

"""The assignor of share groups: every member has partitions, shared evenly; the same results as Apache Kafka's."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.harness.jvm import BRIEF
from kbroker.group_coordinator.assignors.simple import SharingMember, SharingSpec, simple
from kbroker.group_coordinator.java_order import in_java_order, topics_in_java_order
from tests.tries import tries

SEED = 20261128
PROGRAM = Path(__file__).parent / "RunAssignors.java"
T, U = b"t" * 16, b"u" * 16


def spec_of(subscriptions, partitions, held=None):
    members = {
        name: SharingMember(
            topics_in_java_order(subscriptions[name], copied=False),
            {topic: frozenset(indexes) for topic, indexes in (held or {}).get(name, {}).items()},
        )
        for name in in_java_order(subscriptions)
    }
    return SharingSpec(members, len(set(subscriptions.values())) <= 1, partitions)


def sharers(assignment):
    found = {}
    for name, topics in assignment.items():
        for topic, indexes in topics.items():
            for index in indexes:
                found.setdefault((topic, index), set()).add(name)
    return found


def loads(assignment):
    return {name: sum(map(len, topics.values())) for name, topics in assignment.items()}


def test_one_member_gets_everything():
    spec = spec_of({"a": frozenset([T, U])}, {T: [0, 1, 2], U: [0]})
    assert simple(spec) == {"a": {T: frozenset({0, 1, 2}), U: frozenset({0})}}


def test_more_members_than_partitions_share_them():
    assignment = simple(spec_of({name: frozenset([T]) for name in "abcd"}, {T: [0, 1]}))
    assert set(loads(assignment).values()) == {1}
    assert {len(each) for each in sharers(assignment).values()} == {2}


def test_only_initialised_partitions_are_assigned():
    assignment = simple(spec_of({"a": frozenset([T])}, {T: [1, 3]}))
    assert assignment == {"a": {T: frozenset({1, 3})}}
    assert simple(spec_of({"a": frozenset([T])}, {T: []})) == {"a": {}}


def test_nobody_and_nothing():
    assert simple(SharingSpec({}, True, {})) == {}
    assert simple(spec_of({"a": frozenset()}, {})) == {}


@st.composite
def histories(draw):
    """Generate successive states of a group: members and their subscriptions."""
    partitions = {topic: list(range(draw(st.integers(1, 9)))) for topic in (T, U)}
    alike = draw(st.booleans())
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=8, unique=True))
        choices = [frozenset([T, U])] if alike else [frozenset([T]), frozenset([U]), frozenset([T, U])]
        steps.append({name: draw(st.sampled_from(choices)) for name in names})
    return partitions, steps


@settings(max_examples=tries(200))
@given(histories())
def test_every_partition_of_a_subscribed_topic_has_a_member(history):
    partitions, steps = history
    held = {}
    for subscriptions in steps:
        assignment = simple(spec_of(subscriptions, partitions, held))
        wanted = {
            (topic, index) for topics in subscriptions.values() for topic in topics for index in partitions[topic]
        }
        found = {place: names for place, names in sharers(assignment).items() if place in wanted}
        assert found.keys() == wanted
        for (topic, _), names in found.items():
            assert any(topic in subscriptions[name] for name in names)
        for name, topics in subscriptions.items():
            assert any(assignment[name].get(topic) for topic in topics)
        if len(set(subscriptions.values())) == 1:
            assert max(map(len, found.values())) - min(map(len, found.values())) <= 1
        held = assignment


def random_spec(rng):
    """Return a group in the middle of its life, with new, deleted and uninitialised topics."""
    topics = [rng.randbytes(16) for _ in range(rng.randint(1, 6))]
    counts = {topic: rng.randint(1, 30) for topic in topics}
    assignable = {
        topic: list(range(count)) if rng.random() < 0.7 else sorted(rng.sample(range(count), rng.randint(0, count)))
        for topic, count in counts.items()
    }
    names = [f"m{rng.randint(0, 10**6)}" for _ in range(rng.randint(1, 25))]
    alike = rng.random() < 0.5
    common = frozenset(rng.sample(topics, rng.randint(1, len(topics))))
    subscriptions = {
        name: common if alike else frozenset(rng.sample(topics, rng.randint(0, len(topics)))) for name in names
    }
    held = {}
    for name in names:
        for topic in topics:
            if rng.random() < 0.4:
                some = assignable[topic]
                if some:
                    held.setdefault(name, {})[topic] = set(rng.sample(some, rng.randint(1, len(some))))
    return spec_of(subscriptions, assignable, held), counts


def lines(spec, counts):
    def text(partitions):
        return ";".join(
            f"{topic.hex()}:{','.join(map(str, sorted(each)))}" for topic, each in sorted(partitions.items()) if each
        )

    for topic, count in counts.items():
        yield f"topic|{topic.hex()}|{count}"
    yield f"assignable|{text(spec.partitions)}"
    for name, member in spec.members.items():
        yield f"member|{name}||{','.join(topic.hex() for topic in sorted(member.topics))}|{text(member.assigned)}"
    yield f"assign|simple|{int(spec.homogeneous)}"


def printed(assignment):
    def one(partitions):
        return "".join(f"{topic.hex()}{sorted(partitions[topic])}" for topic in sorted(partitions) if partitions[topic])

    return "".join(f"{name}|{one(assignment[name])} " for name in sorted(assignment))


def compare(libs, cases):
    rng = random.Random(SEED)
    specs = [random_spec(rng) for _ in range(cases)]
    text = "".join(f"{line}\n" for spec, counts in specs for line in lines(spec, counts))
    command = ["java", *BRIEF, "-cp", f"{libs}/*", str(PROGRAM)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.splitlines()
    assert len(theirs) == len(specs)
    for number, ((spec, _), their) in enumerate(zip(specs, theirs, strict=True)):
        assert printed(simple(spec)) == their, f"seed {SEED}, case {number}, homogeneous: {spec.homogeneous}"


@pytest.mark.java
def test_apache_kafkas_assignor_decides_alike(kafka_libs):
    compare(kafka_libs, 500)

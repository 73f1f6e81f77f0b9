"""The same operations for this shard and for that of Apache Kafka 4.4: the same answers, and the same bytes."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from compat_tests.harness.jvm import BRIEF
from kbroker.share_coordinator.share_partition_state import SharePartition

from .context import OTHER, TOPIC, Context

SEED = 20261128
PROGRAM = Path(__file__).parent / "RunShard.java"
UPDATES, GROUPS = 4, ("g", "h")


def operations(rng, count):
    """Yield operations as words, with times; most are valid."""
    now = 1_700_000_000_000
    for _ in range(count):
        now += rng.choice([1, 1_000, 20_000])
        kind = rng.choices(
            ["initialize", "read", "summary", "write", "delete", "cold", "prune"], [2, 4, 2, 12, 0.5, 0.5, 1]
        )[0]
        if kind in ("cold", "prune"):
            yield [kind, now]
            continue
        topic = rng.choice([TOPIC, OTHER, b"?" * 16] if rng.random() < 0.05 else [TOPIC, OTHER])
        place = [rng.choice(GROUPS), topic.hex(), rng.choice([0, 1, 0, 1, 0, 1, 2, -1])]
        epoch = rng.choice([-1, 0, 1, 2]) if rng.random() < 0.2 else 2
        leader_epoch = rng.choice([-1, 0, 1, 2, 3]) if rng.random() < 0.2 else 3
        start = rng.choice([-1, rng.randint(0, 40)])
        if kind == "initialize":
            yield [kind, now, *place, rng.choice([0, 1, 2]), start]
        elif kind == "read":
            yield [kind, now, *place, leader_epoch]
        elif kind == "write":
            batches = []
            for _ in range(rng.randint(0, 5)):
                first = rng.randint(0, 60)
                last = first + rng.choice([0, 1, rng.randint(0, 15)])
                batches.append(f"{first},{last},{rng.choice([0, 2, 4])},{rng.randint(1, 3)}")
            yield [kind, now, *place, epoch, leader_epoch, start, rng.choice([-1, 0, 3]), *batches]
        else:
            yield [kind, now, *place]


def answered(context, words):
    """Return this shard's answer to an operation in the form that the program prints."""
    context.runtime._timers.close()  # the steps decide when idle states are snapshotted
    kind, context.now = words[0], words[1]
    before = len(context.log)
    if kind == "cold":
        context.ask(lambda shard, now: shard.on_timer(("cold",), now))
        text = "cold"
    elif kind == "prune":
        text = f"prune {context.shard._snapshots.redundant_below}"
    else:
        place = SharePartition(words[2], bytes.fromhex(words[3]), words[4])
        text = asked(context, kind, place, words[5:])
    new = context.log[before:]
    return text + "".join(f" {record.key.hex()}={(record.value or b'').hex()}" for record in new)


def asked(context, kind, place, values):
    if kind == "initialize":
        found = context.initialize(*values, place=place)
    elif kind == "delete":
        found = context.delete(place)
    elif kind == "write":
        epoch, leader_epoch, start, count, *batches = values
        ranges = [tuple(map(int, each.split(","))) for each in batches]
        found = context.write(ranges, start, epoch, leader_epoch, count, place)
    elif kind == "read":
        found = context.read(*values, place=place)
        batches = ";".join(",".join(map(str, each)) for each in found.batches)
        return f"{said(found)}|{found.state_epoch}|{found.start_offset}|{batches}"
    else:
        found = context.summary(place)
        rest = (found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count)
        return f"{said(found)}|" + "|".join(map(str, rest))
    return said(found)


def said(found):
    return f"{int(found.error_code)}|{'null' if found.message is None else found.message}"


def compare(libs, count, seed=SEED):
    steps = list(operations(random.Random(seed), count))
    text = "".join(" ".join(map(str, words)) + "\n" for words in steps)
    command = ["java", *BRIEF, "-cp", f"{libs}/*", str(PROGRAM), str(UPDATES), TOPIC.hex(), OTHER.hex()]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    theirs = [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]  # others are Kafka's log
    assert len(theirs) == len(steps)
    context = Context(UPDATES)
    context.topics = {TOPIC: 2, OTHER: 2}
    same_offsets = True
    for number, (words, their) in enumerate(zip(steps, theirs, strict=True)):
        ours, kind = answered(context, words), words[0]
        if kind == "cold" and len(ours.split()) > 2:
            # Several snapshots have no order in Kafka; offsets in the two logs may differ from now on.
            ours, their, same_offsets = sorted(ours.split()), sorted(their.split()), False
        if kind != "prune" or same_offsets:
            assert ours == their, f"seed {seed}, step {number}: {words}: {ours} != {their}"
    assert context.log


@pytest.mark.java
def test_apache_kafkas_shard_decides_alike(kafka_libs):
    if not list(Path(kafka_libs).glob("kafka-share-coordinator-4.[4-9]*.jar")):
        pytest.skip("Apache Kafka before 4.4 checks the epochs of a write in another order")
    compare(kafka_libs, 3_000)

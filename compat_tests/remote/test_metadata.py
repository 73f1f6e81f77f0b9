"""Records of `__remote_log_metadata`, their partitions and what follows from them, held to Apache Kafka's classes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from compat_tests.harness.jvm import run_java
from kbroker.protocol.errors import Malformed
from kbroker.remote.metadata_records import (
    MetadataRecord,
    decode_record,
    delete_record,
    encode_record,
    metadata_partition,
    segment_record,
    snapshot_record,
    update_record,
)
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState
from kbroker.remote.segments import RemoteSegments, UnknownSegmentError
from tests.remote.naive import EPOCHS, NaiveSegments, small_segment
from tests.tries import tries

pytestmark = pytest.mark.java

SOURCE = Path(__file__).with_name("RemoteMetadata.java")
TOPIC_ID = bytes(range(16))


def asked(libs: Path, lines: Sequence[str]) -> list[str]:
    status, out, err = run_java(libs, str(SOURCE), stdin="\n".join(lines))
    answers = [line[2:] for line in out.splitlines() if line.startswith("= ")]
    assert status == 0, err[-3000:]
    assert len(answers) == len(lines), err[-3000:]
    return answers


def seeded() -> random.Random:
    seed = int(os.environ.get("KBROKER_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"KBROKER_SEED={seed}")
    return random.Random(seed)


def any_segment(rng: random.Random) -> RemoteSegment:
    start = rng.choice([0, 1, 127, rng.randrange(1 << 62)])
    return RemoteSegment(
        id=rng.randbytes(16),
        start_offset=start,
        end_offset=start + rng.choice([0, 1, rng.randrange(1 << 32)]),
        max_timestamp_ms=rng.randrange(-1, 1 << 62),
        event_timestamp_ms=rng.randrange(1 << 62),
        broker_id=rng.choice([0, 1, rng.randrange(1 << 31)]),
        size=rng.randrange(1 << 31),
        epochs=tuple(
            sorted({rng.randrange(1 << 31): rng.randrange(1 << 62) for _ in range(rng.randint(1, 4))}.items())
        ),
        state=rng.choice(list(SegmentState)),
        custom=rng.choice([None, b"", rng.randbytes(rng.randrange(1, 300))]),
        no_aborted_transactions=rng.random() < 0.5,
    )


def any_value(rng: random.Random) -> bytes:
    owner = (rng.choice(["t", "a-topic.with_signs", "x" * 249]), rng.randbytes(16), rng.randrange(1 << 31))
    segment = any_segment(rng)
    records: list[MetadataRecord] = [
        segment_record(*owner, segment),
        update_record(*owner, segment),
        snapshot_record(segment),
        delete_record(*owner, rng.choice(list(DeleteState)), segment.broker_id, segment.event_timestamp_ms),
    ]
    return encode_record(rng.choice(records))


def changed(rng: random.Random, value: bytes) -> bytes:
    """Return a value with a byte changed at its head or anywhere, cut off, or with bytes after it."""
    at = rng.randrange(rng.choice([4, len(value)]))
    how = rng.randrange(3)
    if how == 0:
        return value[:at] + rng.randbytes(1) + value[at + 1 :]
    return value[:at] if how == 1 else value + rng.randbytes(rng.randint(1, 3))


def is_readable(value: bytes) -> bool:
    try:
        decode_record(value)
    except Malformed:
        return False
    return True


def test_kafka_reads_and_writes_the_same_values(kafka_libs: Path) -> None:
    rng = seeded()
    values = [any_value(rng) for _ in range(tries(600))]
    damaged = [changed(rng, rng.choice(values)) for _ in range(tries(2000))]
    partitions = [(rng.randbytes(16), rng.randrange(1 << 31), rng.randint(1, 100)) for _ in range(tries(200))]
    lines = [f"serde {value.hex()}" for value in values + damaged]
    lines += [f"partition {topic_id.hex()} {number} {count}" for topic_id, number, count in partitions]
    answers = asked(kafka_libs, lines)
    for value, answer in zip(values, answers, strict=False):
        written, _, fields = answer.partition(" ")
        assert written == value.hex(), fields
        assert encode_record(decode_record(value)) == value
    refused = 0
    for value, answer in zip(damaged, answers[len(values) :], strict=False):
        theirs = answer.partition(" ")[0]
        if is_readable(value):
            assert theirs != "refused", value.hex()
        else:  # Kafka passes over a wrong length of the tagged field, and writes the right one
            assert theirs != value.hex(), answer
        refused += theirs == "refused"
    assert refused > len(damaged) // 4, "the damage is seen"
    expected = [str(metadata_partition(*each)) for each in partitions]
    assert answers[len(values) + len(damaged) :] == expected


def compare_lives(rng: random.Random, lines: list[str], ours: list[str]) -> None:
    """Add the lines that let segments of a partition live in Kafka's cache, and what ours answers."""
    segments, naive = RemoteSegments(), NaiveSegments(loses=True)
    owner = ("t", TOPIC_ID, 0)
    shapes: list[RemoteSegment] = []
    lines.append("new")
    ours.append("ok")
    for _ in range(60):
        if not shapes or rng.random() < 0.3:
            shapes.append(small_segment(rng, rng.randbytes(16)))
        shape = rng.choice(shapes[-8:])
        if not segments.loaded and rng.random() < 0.1:
            segments.loaded = True
            lines.append("loaded")
            ours.append("ok")
        if segments.get(shape.id) is None and rng.random() < 0.9:
            lines.append(f"add {encode_record(segment_record(*owner, shape)).hex()}")
            segments.add(shape)
            naive.reach(shape)
            ours.append("ok")
        else:
            state = rng.choice(list(SegmentState))
            lines.append(f"update {encode_record(update_record(*owner, shape.updated(state, 2, 2, None))).hex()}")
            ours.append(updated(segments, naive, shape, state))
        ask(rng, segments, naive, lines, ours)


def updated(segments: RemoteSegments, naive: NaiveSegments, shape: RemoteSegment, state: SegmentState) -> str:
    try:
        if segments.update(shape.id, state, 2, 2, None):
            naive.reach(naive.known[shape.id].updated(state, 2, 2, None))
    except UnknownSegmentError:
        return "RemoteResourceNotFoundException"
    except ValueError:
        return "IllegalArgumentException"
    return "ok"


def listed(segments: Iterable[RemoteSegment]) -> str:
    return ",".join(sorted(f"{each.start_offset}:{each.state:d}:{each.id.hex()}" for each in segments))


def ask(rng: random.Random, segments: RemoteSegments, naive: NaiveSegments, lines: list[str], ours: list[str]) -> None:
    lines.append("all")
    ours.append(listed(segments.all()))
    for epoch in EPOCHS:
        lines += [f"highest {epoch}", f"list {epoch}"]
        highest = segments.highest_offset(epoch)
        ours += ["-" if highest is None else str(highest), listed(naive.known[each] for each in naive.ids(epoch))]
        for offset in rng.sample(range(150), 6):
            lines += [f"find {epoch} {offset}", f"txn {epoch} {offset}"]
            found = naive.find(epoch, offset), with_aborted(naive, epoch, offset)
            ours += ["-" if each is None else each.hex() for each in found]
            check_difference(segments, naive, epoch, offset)


def with_aborted(naive: NaiveSegments, epoch: int, offset: int) -> bytes | None:
    found = naive.find(epoch, offset)
    while found is not None and naive.known[found].no_aborted_transactions:
        end = naive.known[found].end_offset
        if end < offset:
            return None
        offset, found = end + 1, naive.find(epoch, end + 1)
    return found


def check_difference(segments: RemoteSegments, naive: NaiveSegments, epoch: int, offset: int) -> None:
    """Check that ours finds what Kafka finds, or has taken it for useless because of a longer copy.

    When the longer copy is deleted, the shorter ones within it wait for their deletion.
    """
    theirs, mine = naive.find(epoch, offset), segments.find(epoch, offset)
    if theirs is not None and (mine is None or mine.id != theirs):
        assert theirs in set(segments.unreferenced(epoch))


def test_kafkas_cache_and_ours_hold_the_same_segments(kafka_libs: Path) -> None:
    rng = seeded()
    lines: list[str] = []
    ours: list[str] = []
    for _ in range(tries(20)):
        compare_lives(rng, lines, ours)
    for line, theirs, mine in zip(lines, asked(kafka_libs, lines), ours, strict=True):
        if line == "all" or line.startswith("list"):
            theirs = ",".join(sorted(theirs.split(",")))  # Kafka has no order among segments with the same start
        assert theirs == mine, line
    found = [answer for line, answer in zip(lines, ours, strict=True) if line.startswith("find") and answer != "-"]
    assert len(found) > tries(20) * 10, "lookups find something"

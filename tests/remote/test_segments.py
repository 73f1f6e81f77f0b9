"""The segments of a partition: held to the naive model, legal transitions, and what many of them cost."""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.long_work import whole
from kbroker.remote.segment import (
    DeleteState,
    RemoteSegment,
    SegmentState,
    deletion_may_become,
    may_become,
    pack,
    unpack,
)
from kbroker.remote.segments import RemoteSegments, UnknownSegmentError
from tests.remote.naive import EPOCHS, NaiveSegments, small_segment
from tests.tries import FORM, tries

STARTED, FINISHED, DELETING, DELETED = SegmentState
MARKED, DELETION_STARTED, DELETION_FINISHED = DeleteState


def segment(number: int, start: int, end: int, *epochs: tuple[int, int]) -> RemoteSegment:
    return RemoteSegment(number.to_bytes(16, "big"), start, end, end, 1, 1, 100, epochs or ((0, start),))


def step(segments: RemoteSegments, each: RemoteSegment, state: SegmentState) -> bool:
    return segments.update(each.id, state, 2, 2, b"custom")


def copied(segments: RemoteSegments, *each: RemoteSegment) -> None:
    for one in each:
        assert segments.add(one)
        assert step(segments, one, FINISHED)


def test_the_legal_transitions_are_kafkas():
    legal = {
        (None, STARTED),
        (STARTED, FINISHED),
        (STARTED, DELETING),
        (FINISHED, DELETING),
        (DELETING, DELETED),
        *((state, state) for state in SegmentState),
    }
    for before in (None, *SegmentState):
        for after in SegmentState:
            assert may_become(before, after) == ((before, after) in legal)
    of_partitions = {
        (None, MARKED),
        (MARKED, DELETION_STARTED),
        (DELETION_STARTED, DELETION_FINISHED),
        *((state, state) for state in DeleteState),
    }
    for before in (None, *DeleteState):
        for after in DeleteState:
            assert deletion_may_become(before, after) == ((before, after) in of_partitions)


@settings(max_examples=tries(40))
@given(st.integers(0, 1 << 32), st.integers(1, 80))
def test_it_is_the_naive_model_at_every_step(seed, steps):
    rng = random.Random(seed)
    ours, model = RemoteSegments(), NaiveSegments()
    ours.loaded = True
    shapes: list[RemoteSegment] = []
    for number in range(steps):
        if not shapes or rng.random() < 0.3:
            shapes.append(small_segment(rng, number.to_bytes(16, "big")))
        shape = rng.choice(shapes[-8:])
        change(rng, ours, model, shape)
        compare(rng, ours, model)


def change(rng, ours, model, shape):
    known = model.known.get(shape.id)
    if known is None or rng.random() < 0.05:
        legal = known is None or known.state is STARTED
        assert ours.add(shape) == legal
        if legal:
            model.reach(shape)
        return
    state = rng.choice(list(SegmentState))
    legal = may_become(known.state, state)
    if state is STARTED and legal:
        with pytest.raises(ValueError):
            step(ours, shape, state)
        return
    assert step(ours, shape, state) == legal
    if legal:
        model.reach(known.updated(state, 2, 2, b"custom"))


def compare(rng, ours, model):
    assert len(ours) == len(model.known)
    assert {each.id: each for each in ours.all()} == model.known
    for state in SegmentState:
        assert ours.count(state) == sum(each.state is state for each in model.known.values())
        assert ours.size(state) == sum(each.size for each in model.known.values() if each.state is state)
    for epoch in EPOCHS:
        assert ours.highest_offset(epoch) == model.highest.get(epoch)
        listed = list(ours.of_epoch(epoch))
        assert {each.id for each in listed} == model.ids(epoch)
        assert len(listed) == len(model.ids(epoch))
        assert set(ours.unreferenced(epoch)) == model.others.get(epoch, set())
        for offset in rng.sample(range(150), 12):
            found = ours.find(epoch, offset)
            assert (found and found.id) == model.find(epoch, offset), (epoch, offset)


@given(st.integers(0, 1 << 32), st.one_of(st.none(), st.binary(max_size=40)))
def test_packed_segments_come_back_whole(seed, custom):
    each = replace(small_segment(random.Random(seed), bytes(16)), custom=custom)
    assert unpack(each.id, pack(each)) == each


def test_a_segment_is_readable_only_between_copy_and_deletion():
    segments = RemoteSegments()
    one = segment(1, 10, 19)
    assert segments.add(one)
    assert segments.find(0, 15) is None
    assert segments.highest_offset(0) is None
    assert step(segments, one, FINISHED)
    assert segments.find(0, 15) == one.updated(FINISHED, 2, 2, b"custom")
    assert segments.find(0, 9) is None
    assert segments.find(0, 20) is None
    assert segments.find(1, 15) is None
    assert not segments.add(one)
    assert not step(segments, one, DELETED)
    assert step(segments, one, DELETING)
    assert segments.find(0, 15) is None
    assert [each.state for each in segments.of_epoch(0)] == [DELETING]
    assert step(segments, one, DELETED)
    assert list(segments.of_epoch(0)) == []
    assert len(segments) == 0
    assert segments.highest_offset(0) == 19


def test_an_update_of_an_unknown_segment_is_dropped_only_while_loading():
    segments = RemoteSegments()
    assert not step(segments, segment(1, 0, 9), FINISHED)
    segments.loaded = True
    with pytest.raises(UnknownSegmentError, match="no segment 0000"):
        step(segments, segment(1, 0, 9), FINISHED)


def test_an_offset_belongs_to_a_segment_only_in_its_own_epoch():
    segments = RemoteSegments()
    copied(segments, segment(1, 0, 99, (1, 0), (3, 40)))
    assert segments.find(1, 39) is not None
    assert segments.find(1, 40) is None
    assert segments.find(3, 40) is not None
    assert (segments.highest_offset(1), segments.highest_offset(3)) == (39, 99)


def test_a_longer_copy_replaces_shorter_ones_and_a_shorter_one_loses_nothing():
    segments = RemoteSegments()
    long, short, other = segment(1, 0, 200), segment(2, 0, 100), segment(3, 50, 300)
    copied(segments, short, long)
    assert list(segments.unreferenced(0)) == [short.id]
    copied(segments, other)
    assert segments.find(0, 60).id == other.id
    again = segment(4, 0, 100)
    copied(segments, again)
    assert segments.find(0, 60).id == other.id
    assert segments.find(0, 40).id == long.id, "Kafka finds the short one"
    assert set(segments.unreferenced(0)) == {short.id, again.id}


def test_a_copy_within_a_segment_hides_nothing():
    segments = RemoteSegments()
    outer, inner, equal = segment(1, 0, 99), segment(2, 50, 80), segment(3, 50, 99)
    copied(segments, outer, inner, equal)
    assert {segments.find(0, each).id for each in (0, 49, 50, 80, 81, 99)} == {outer.id}
    assert segments.last(0).id == outer.id
    assert {each.id for each in segments.useless()} == {inner.id, equal.id}


def test_segments_come_by_their_starts_and_survive_changes_in_between():
    segments = RemoteSegments()
    parts = [segment(number, number * 10, number * 10 + 9) for number in range(20)]
    copied(segments, *parts)
    segments.add(segment(99, 35, 38))
    assert [each.start_offset for each in segments.of_epoch(0)] == sorted([*range(0, 200, 10), 35])
    seen = []
    for each in segments.of_epoch(0):
        seen.append(each.start_offset)
        if each.start_offset == 50:
            for gone in parts[2:9]:
                step(segments, gone, DELETING)
                step(segments, gone, DELETED)
    assert seen == sorted([*range(0, 60, 10), 35, *range(90, 200, 10)])


def test_the_next_segment_with_aborted_transactions():
    segments = RemoteSegments()
    quiet = [replace(segment(at, at * 10, at * 10 + 9), no_aborted_transactions=True) for at in range(5)]
    copied(segments, *quiet, segment(5, 50, 59))
    assert whole(segments.find_with_aborted(0, 3)).start_offset == 50
    assert whole(segments.find_with_aborted(0, 60)) is None
    step(segments, quiet[3], DELETING)
    assert whole(segments.find_with_aborted(0, 3)) is None, "the chain is broken"


def test_contradictory_epochs_end_a_search():
    segments = RemoteSegments()
    copied(segments, replace(segment(1, 0, 9, (0, 0), (1, 50)), no_aborted_transactions=True))
    assert segments.find(0, 20) is not None
    assert whole(segments.find_with_aborted(0, 3)) is None


def test_the_deletion_of_a_partition_forgets_its_segments():
    segments = RemoteSegments()
    copied(segments, segment(1, 0, 9))
    assert not segments.delete_partition(DELETION_STARTED)
    assert segments.deletion is None
    assert segments.delete_partition(MARKED)
    assert segments.delete_partition(MARKED)
    assert segments.delete_partition(DELETION_STARTED)
    assert len(segments) == 1
    assert segments.delete_partition(DELETION_FINISHED)
    assert len(segments) == 0
    assert segments.count(FINISHED) == segments.size(FINISHED) == 0
    assert (segments.find(0, 3), segments.highest_offset(0)) == (None, None)


COUNT = 100_000 if FORM == "long" else 3_000


def test_segments_take_less_than_400_bytes_each_and_logarithmic_steps():
    rng = random.Random(1)
    tracemalloc.start()
    try:
        segments = RemoteSegments()
        for number in range(COUNT):
            each = replace(segment(number, number * 1000, number * 1000 + 999, (number // 1000, number * 1000)))
            each = replace(each, id=rng.randbytes(16), max_timestamp_ms=1_700_000_000_000 + number)
            copied(segments, each)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken / len(segments) < 400, f"{taken / len(segments):.0f} bytes a segment"
    began = time.process_time()
    for _ in range(1000):
        at = rng.randrange(len(segments))
        assert segments.find(at // 1000, at * 1000 + 5).start_offset == at * 1000
    assert time.process_time() - began < 0.5

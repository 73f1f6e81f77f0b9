"""The slices of a replay: each offset is in one of them, in order, at its time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.replay.plan import Bounds, Bucket, Slice, after, by_count, by_time

P = [Partition("t", number) for number in range(3)]
bounds_of = st.dictionaries(
    st.sampled_from(P),
    st.tuples(st.integers(0, 100), st.integers(0, 300)).map(lambda x: (x[0], x[0] + x[1])),
    min_size=1,
)


def covered(slices: list[Slice]) -> dict[Partition, list[tuple[int, int]]]:
    found: dict[Partition, list[tuple[int, int]]] = {}
    for each in slices:
        for partition, pair in each.bounds.items():
            found.setdefault(partition, []).append(pair)
    return found


def assert_covers(slices: list[Slice], bounds: Bounds) -> None:
    found = covered(slices)
    for partition, (start, end) in bounds.items():
        place = start
        for first, last in found.pop(partition, []):
            assert first == place
            assert last > first
            place = last
        assert place == end
    assert not found


@given(bounds_of, st.integers(1, 200))
def test_slices_by_count_cover_all(bounds: Bounds, records: int) -> None:
    slices = by_count(bounds, records)
    assert_covers(slices, bounds)
    for each in slices:
        assert sum(end - start for start, end in each.bounds.values()) <= records + len(bounds)


@given(bounds_of, st.data())
def test_slices_by_time_cover_all_and_wait_for_their_time(bounds: Bounds, data: st.DataObject) -> None:
    buckets = []
    for partition, (start, end) in bounds.items():
        firsts = range(start, end, 7)
        buckets += [Bucket(partition, first, data.draw(st.integers(0, 100_000))) for first in firsts]
    slices = by_time(bounds, buckets, speed=10, step_s=1)
    assert_covers(slices, bounds if buckets else {})
    assert [each.due for each in slices] == sorted(each.due for each in slices)
    heads = [bucket.newest for bucket in buckets if bucket.first == bounds[bucket.partition][0]]
    oldest = min(heads, default=0)
    for each in slices:
        for bucket in buckets:
            start, end = each.bounds.get(bucket.partition, (0, 0))
            if start <= bucket.first < end:
                assert bucket.newest <= oldest + (each.due + 1) * 10_000


def test_an_old_record_behind_a_new_one_goes_with_it() -> None:
    bounds = {P[0]: (0, 3)}
    slices = by_time(bounds, [Bucket(P[0], 0, 0), Bucket(P[0], 1, 25_000), Bucket(P[0], 2, 1_000)], speed=10, step_s=1)
    assert [(each.bounds[P[0]], each.due) for each in slices] == [((0, 1), 0), ((1, 3), 2)]


def test_steps_without_records_are_none() -> None:
    year = 365 * 86_400
    buckets = [Bucket(P[0], 0, 0), Bucket(P[0], 1, year * 1000), Bucket(P[1], 0, year * 500)]
    slices = by_time({P[0]: (0, 2), P[1]: (0, 1), P[2]: (0, 4)}, buckets, speed=1, step_s=0.001)
    assert slices == [
        Slice({P[0]: (0, 1), P[2]: (0, 4)}, 0),
        Slice({P[1]: (0, 1)}, year / 2),
        Slice({P[0]: (1, 2)}, year),
    ]


def test_what_is_left_begins_at_once() -> None:
    slices = [Slice({P[0]: (0, 5)}, 0), Slice({P[0]: (5, 8), P[1]: (0, 2)}, 4), Slice({P[1]: (2, 9)}, 6)]
    left = after(slices, {P[0]: 6})
    assert left == [Slice({P[0]: (6, 8), P[1]: (0, 2)}, 0), Slice({P[1]: (2, 9)}, 2)]
    assert after(slices, {P[0]: 8, P[1]: 9}) == []

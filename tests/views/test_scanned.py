"""The memory of what was scanned: ranges without matches, filtered batches, and their bounds."""

from __future__ import annotations

import random

import pytest

from kbroker.filters.filtering import compile_filter
from kbroker.views.scanned import MOST_RANGES, Ranges, Selection
from kbroker.views.shared import Kept
from tests.tries import tries


@pytest.mark.parametrize("seed", range(tries(100)))
def test_ranges_are_joined_and_skipped(seed: int) -> None:
    rng, ranges, there = random.Random(seed), Ranges(), set[int]()
    for _ in range(30):
        begin = rng.randrange(100)
        end = begin + rng.randrange(12)
        ranges.add(begin, end)
        there.update(range(begin, end))
        for offset in range(112):
            expected = offset
            while expected in there:
                expected += 1
            assert ranges.behind(offset) == expected


def test_ranges_have_a_bound_and_the_smallest_is_forgotten() -> None:
    ranges = Ranges()
    for number in range(5 * MOST_RANGES):
        ranges.add(number * 100, number * 100 + 1 + number % 50)
    assert len(ranges) == MOST_RANGES
    ranges.add(10**6, 2 * 10**6)
    assert ranges.behind(10**6) == 2 * 10**6


def test_filtered_batches_in_memory_have_a_bound() -> None:
    kept = Kept(10_000)
    for number in range(100):
        kept.put((number,), b"x" * 700, number)
    assert kept.size <= 10_000
    assert kept.get((99,)) == (b"x" * 700, 99)
    assert kept.get((0,)) is None
    kept.put(("large",), b"x" * 20_000, 0)
    assert kept.get(("large",)) is None


def test_the_ends_never_become_less() -> None:
    selection = Selection(compile_filter("*"), 0)
    selection.attach(0)
    for base in range(0, 100, 10):
        selection.matched(base, base + 3, base + 5)
    assert selection.high_watermark(0) == 94
    assert [selection.last_stable_offset(stable, 0) for stable in (0, 50, 51, 95)] == [0, 44, 44, 94]
    selection.note(20)
    assert selection.high_watermark(0) == 94
    assert selection.high_watermark(200) == 200


def test_a_slow_reader_keeps_its_progress_beside_many_large_ranges() -> None:
    """Each slice of a slow scan adds a little; if it was forgotten, the next one would begin at the same place."""
    ranges = Ranges()
    for number in range(2 * MOST_RANGES):
        ranges.add(number * 1000, number * 1000 + 900)
    readers = [10_000_000, 20_000_000]
    for _ in range(20):
        for start in readers:
            at = ranges.behind(start)
            ranges.add(start, at + 10)
    assert len(ranges) == MOST_RANGES
    assert [ranges.behind(start) - start for start in readers] == [200, 200]

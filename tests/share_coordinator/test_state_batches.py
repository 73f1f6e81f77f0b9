"""The combination of state batches, compared with a simple model that keeps the strongest state of each offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.share_coordinator.state_batches import NO_BATCHES, StateBatch, combined
from tests.tries import tries

BATCHES = st.lists(
    st.builds(
        lambda first, length, state, count: StateBatch(first, first + length, state, count),
        st.integers(0, 60),
        st.integers(0, 12),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=12,
)


def by_offset(batches, start_offset):
    found = {}
    for first, last, state, count in batches:
        for offset in range(max(first, start_offset), last + 1):
            found[offset] = max(found.get(offset, (0, 0)), (count, state))
    return found


@settings(max_examples=tries(100))
@given(st.lists(st.tuples(BATCHES, st.integers(-1, 50)), max_size=5))
def test_combined_batches_have_the_strongest_state_of_each_offset(rounds):
    known, model, start = NO_BATCHES, {}, -1
    for new, moved in rounds:
        start = max(start, moved)
        known = combined(known, new, start)
        model = {offset: each for offset, each in model.items() if offset >= start}
        for offset, each in by_offset(new, start).items():
            model[offset] = max(model.get(offset, (0, 0)), each)
        assert by_offset(known, -1) == model
        for a, b in pairwise(known):
            assert a.last_offset < b.first_offset
            assert a.last_offset + 1 < b.first_offset or a[2:] != b[2:]


def test_the_greater_delivery_count_wins_then_the_greater_state():
    known = combined(NO_BATCHES, [StateBatch(0, 9, 0, 2)], 0)
    assert combined(known, [StateBatch(3, 5, 2, 1)], 0) == known
    assert combined(known, [StateBatch(3, 5, 4, 2)], 0) == ((0, 2, 0, 2), (3, 5, 4, 2), (6, 9, 0, 2))
    assert combined(known, [StateBatch(3, 5, 0, 3)], 4) == ((4, 5, 0, 3), (6, 9, 0, 2))


def test_a_new_batch_joins_both_neighbours():
    known = combined(NO_BATCHES, [StateBatch(0, 4, 2, 1), StateBatch(6, 9, 2, 1)], 0)
    assert len(known) == 2
    assert combined(known, [StateBatch(5, 5, 2, 1)], 0) == ((0, 9, 2, 1),)

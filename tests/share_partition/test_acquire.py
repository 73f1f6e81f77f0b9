"""Which records an acquisition returns: new batches, up to the limits, and fewer records of often delivered batches."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.share_partition import SharePartition, Wish
from kbroker.share_partition.states import AckBatch, Limits, RecordState, Span

LIMITS = Limits()


def log_of(*sizes: int) -> list[Span]:
    spans, at = [], 0
    for size in sizes:
        spans.append(Span(at, at + size - 1))
        at += size
    return spans


def stored(*batches: tuple[int, int, int, int]) -> SharePartition:
    """Return a share partition with stored state."""
    made = SharePartition(0)
    whole(made.load([StateBatch(*each) for each in batches]))
    return made


def turns(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """Run `work` to its end; return its result and the number of its turns."""
    count = 0
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value, count
        count += 1


def acquire(
    state: SharePartition,
    read: list[Span],
    records: int = 500,
    *,
    limits: Limits = LIMITS,
    now: float = 0.0,
    **how: object,
) -> list[tuple[int, int, int]]:
    wish = Wish("m", records, **how)  # type: ignore[arg-type]
    return [tuple(each) for each in whole(state.acquire(wish, state.next_fetch_offset, read, limits, 0.0))]  # type: ignore[misc]


def acknowledge(state: SharePartition, *batches: tuple[int, int, list[int]], limits: Limits = LIMITS) -> None:
    decided = whole(state.acknowledge("m", [AckBatch(*each) for each in batches], limits, 0.0))
    whole(state.settle(decided, 0.0, is_stored=True))


def test_new_records_are_divided_where_batches_of_the_log_end() -> None:
    state = SharePartition(0)
    assert acquire(state, log_of(3, 3, 3, 5), batch_size=4) == [(0, 5, 1), (6, 13, 1)]
    assert (state.start, state.end) == (0, 14)


def test_the_last_batch_may_exceed_the_wish_unless_the_limit_is_strict() -> None:
    assert acquire(SharePartition(0), log_of(3, 10), 5) == [(0, 12, 1)]
    state = SharePartition(0)
    assert acquire(state, log_of(3, 10), 5, record_limit=True) == [(0, 4, 1)]
    assert state.next_fetch_offset == 5, "the rest of the batch is in flight, and available"
    assert acquire(state, log_of(3, 10), 5, record_limit=True) == [(5, 9, 1)]


@pytest.mark.parametrize(
    ("count", "given"), [(1, [(0, 499, 2)]), (2, [(0, 499, 3)]), (3, [(0, 249, 4)]), (4, [(0, 0, 5)])]
)
def test_a_batch_that_was_delivered_often_is_delivered_in_parts(count: int, given: list[tuple[int, int, int]]) -> None:
    """With a limit of 5, the fourth delivery returns half of the batch, and the fifth and last one a single record."""
    state = stored((0, 499, RecordState.AVAILABLE, count))
    assert acquire(state, log_of(500)) == given


@pytest.mark.parametrize(("count", "size"), [(5, 250), (6, 125), (7, 62), (8, 31), (9, 1)])
def test_the_parts_get_smaller(count: int, size: int) -> None:
    limits = Limits(delivery_count=10)
    assert limits.throttled_from == 5
    state = stored((0, 499, RecordState.AVAILABLE, count))
    assert acquire(state, log_of(500), limits=limits) == [(0, size - 1, count + 1)]


def test_throttled_records_come_after_others_not_with_them() -> None:
    state = stored((0, 9, RecordState.AVAILABLE, 0), (10, 19, RecordState.AVAILABLE, 4))
    assert acquire(state, log_of(10, 10, 10)) == [(0, 9, 1)]
    assert acquire(state, log_of(10, 10, 10)[1:]) == [(10, 10, 5)]
    assert acquire(state, log_of(10, 10, 10)[1:]) == [(11, 11, 5)], "alone, even before new ones"


def test_the_limit_of_two_has_no_delivery_for_one_alone() -> None:
    state = stored((0, 9, RecordState.AVAILABLE, 1))
    assert acquire(state, log_of(10), limits=Limits(delivery_count=2)) == [(0, 9, 2)]


def test_the_limit_of_locks() -> None:
    limits = Limits(record_locks=10)
    state = SharePartition(0)
    assert acquire(state, log_of(*[1] * 30), limits=limits) == [(0, 9, 1)]
    assert not state.can_acquire(limits)
    acknowledge(state, (5, 5, [2]))
    assert state.can_acquire(limits), "what was released is in flight already"
    assert acquire(state, log_of(*[1] * 30)[5:], limits=limits) == [(5, 5, 2)], "and nothing behind the end"
    acknowledge(state, (0, 3, [1]))
    assert state.can_acquire(limits)
    assert acquire(state, log_of(*[1] * 30)[10:], limits=limits) == [(10, 13, 1)]


def test_stored_gaps_are_read_as_new_records() -> None:
    state = stored((3, 4, RecordState.ACKNOWLEDGED, 1), (7, 8, RecordState.AVAILABLE, 2))
    assert (state.start, state.end, state.next_fetch_offset) == (0, 9, 0)
    assert acquire(state, log_of(3, 2, 2, 2, 4)) == [(0, 2, 1), (5, 6, 1), (7, 8, 3), (9, 12, 1)]


def test_what_compaction_removed_is_passed_over() -> None:
    state = stored((0, 9, RecordState.AVAILABLE, 1))
    assert acquire(state, [Span(4, 5), Span(12, 13)]) == [(4, 9, 2), (10, 13, 1)]
    acknowledge(state, (4, 13, [1]))
    assert (state.start, state.end, state.in_flight) == (14, 14, 0)


def test_a_log_that_lost_its_beginning() -> None:
    state = SharePartition(0)
    acquire(state, log_of(10, 10))
    assert state.log_start_moved(15)
    acknowledge(state, (0, 19, [1]))
    assert (state.start, state.end, state.complete_count) == (20, 20, 0)
    acknowledge(state, (3, 4, [1]))  # the offsets are below the start: nothing changes


@pytest.mark.parametrize(
    "batches",
    [[(5, 4, 0, 1)], [(0, 3, 0, 1), (2, 5, 0, 1)], [(0, 3, 9, 1)], [(-2, -1, 0, 1)]],
)
def test_stored_state_that_contradicts_itself(batches: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ApiError) as refused:
        stored(*batches)
    assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_lock_is_not_stored() -> None:
    state = stored((0, 3, RecordState.ACQUIRED, 1), (4, 5, RecordState.ARCHIVING, 3))
    assert acquire(state, log_of(6)) == [(0, 3, 2)]


def test_many_members_leave_no_trace() -> None:
    state = SharePartition(0)
    for number in range(1000):
        whole(state.acquire(Wish(f"m{number}", 1), number, [Span(number, number)], LIMITS, 0.0))
        decided = whole(state.acknowledge(f"m{number}", [AckBatch(number, number, [1])], LIMITS, 0.0))
        whole(state.settle(decided, 0.0, is_stored=True))
    assert len(state.runs._owners) < 200
    assert not state.runs.first


def test_the_memory_of_a_run() -> None:
    """A partition with 10,000 records, of which every second one is acknowledged, takes less than 32 bytes a run."""
    limits = Limits(record_locks=10_000)
    state = SharePartition(0)
    acquire(state, log_of(10_000), 10_000, limits=limits)
    acknowledge(state, (0, 9999, [1, 2] * 5000), limits=limits)
    runs = state.runs
    assert len(runs) == 9999
    columns = (runs.first, runs.what, runs.count, runs.owner, runs.deadline)
    assert sum(sys.getsizeof(column) for column in columns) < 9999 * 32
    for column in (runs.first, runs.count, runs.deadline):
        assert column.itemsize <= 8


def test_ten_thousand_runs_hold_nobody_up() -> None:
    """No turn changes more than some dozens of runs."""
    limits = Limits(record_locks=10_000)
    state = SharePartition(0)
    got, steps = turns(state.acquire(Wish("m", 10_000, 1), 0, log_of(*[1] * 10_000), limits, 0.0))
    assert (len(got), steps >= 150) == (10_000, True)
    decided, steps = turns(state.acknowledge("m", [AckBatch(0, 9999, [2, 3] * 5000)], limits, 0.0))
    assert steps >= 150
    _, steps = turns(state.settle(decided, 0.0, is_stored=True))
    assert steps >= 150
    got, steps = turns(state.acquire(Wish("m", 10_000, 1), 0, log_of(*[1] * 10_000), Limits(record_locks=20_000), 0.0))
    assert (len(got), steps >= 150) == (5_000, True)
    _, steps = turns(state.expire(1e9, limits))
    assert steps >= 150

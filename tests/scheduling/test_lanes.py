"""The lanes of a leader: their times, their pauses, and the partitions that they choose."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.protocol.partitioner import partition_of
from kbroker.scheduling.index import Lane
from kbroker.scheduling.lanes import MISSING, Choice, LaneState, Times, pause_of, why_not

steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 50))),
        st.integers(0, 60),
    ),
    max_size=60,
)


@given(steps)
def test_times_are_those_of_a_plain_table(story: list[tuple[int, int | None] | int]) -> None:
    times, plain = Times(), dict[int, int]()
    for each in story:
        if isinstance(each, tuple):
            lane, at_ms = each
            times.update({lane: at_ms})
            plain.pop(lane, None)
            if at_ms is not None:
                plain[lane] = at_ms
        else:
            assert sorted(times.reached(each)) == sorted(lane for lane, at_ms in plain.items() if at_ms <= each)
            assert times.next_coming() == min((at_ms for at_ms in plain.values() if at_ms > each), default=None)
        assert times.first() == min(plain.values(), default=None)


def test_many_changes_of_one_lane_need_no_memory() -> None:
    times = Times()
    for number in range(10_000, 0, -1):
        times.update({0: number})
    assert len(times._coming) < 200


def topic(*leaders: int, **configs: str) -> TopicState:
    partitions = tuple(PartitionState((1,), (1,), leader, 0) for leader in leaders)
    return TopicState("t", b"t" * 16, partitions, {name.replace("_", "."): value for name, value in configs.items()})


def test_records_without_key_take_turns_among_the_partitions_that_are_free_and_led() -> None:
    state, wanted = LaneState(), topic(1, -1, 1, 1)
    busy = {(b"t" * 16, 2): 0}
    assert [Choice(wanted, busy, state)(None, None) for _ in range(4)] == [0, 3, 0, 3]
    assert Choice(topic(-1, -1), {}, state)(None, None) == -1


def test_a_key_or_a_header_decides() -> None:
    choice = Choice(topic(1, 1, 1), {(b"t" * 16, 2): 0}, LaneState())
    assert choice(b"k", 1) == 1
    assert choice(b"k", 2) == -1
    assert choice(b"k", 3) == MISSING
    for number in range(20):
        key = b"%d" % number
        expected = partition_of(key, 3)
        assert choice(key, None) == (-1 if expected == 2 else expected)


def test_why_nothing_can_go() -> None:
    assert why_not(Lane("t", 2), topic(1, 1, 1)) is None
    assert why_not(Lane("t", 3), topic(1, 1, 1)) is None  # a key chooses among the partitions that there are
    assert why_not(Lane("t", -1), None) == "the topic t does not exist"
    view = replace(topic(1), configs={"view.source": "s"})
    assert why_not(Lane("t", -1), view) == "the topic t is a view, which takes no records"
    assert why_not(Lane("t", -1), topic(1, schedule_enable="true")) == "the topic t is a schedule topic itself"


def test_pauses_grow_to_five_minutes() -> None:
    assert [pause_of(tries) for tries in (0, 1, 8, 9, 10**9)] == [1000, 2000, 256_000, 300_000, 300_000]
    state = LaneState()
    for _ in range(12):
        state.put_off("why", 0.0)
    assert state.not_before == 300_000
    assert not state.put_off("why", 0.0)
    assert state.put_off("another", 0.0, 100)
    assert state.not_before == 100

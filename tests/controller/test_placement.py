"""The placement of replicas: the examples of Apache Kafka's own documentation, and properties of all placements."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.controller.assignments import alternated, place_replicas


def test_without_racks_replicas_follow_their_leader_and_every_round_further_away() -> None:
    placed = place_replicas(dict.fromkeys(range(5)), 3, range(10), 0, 0)
    assert placed == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_with_racks_neighbours_are_in_different_ones() -> None:
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternated(racks) == [0, 3, 1, 5, 4, 2]
    placed = place_replicas(dict(racks), 3, range(7), 0, 0)
    assert placed == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


def test_partitions_that_are_added_go_on_where_the_topic_ends() -> None:
    everywhere = dict.fromkeys(range(4))
    assert place_replicas(everywhere, 2, range(2, 4), 1, 0) == place_replicas(everywhere, 2, range(4), 1, 0)[2:]


def test_one_broker() -> None:
    assert place_replicas({7: "r"}, 1, range(3), 5, 5) == [(7,)] * 3


@given(
    st.dictionaries(st.integers(0, 20), st.none() | st.sampled_from("abc"), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_what_holds_for_all(racks: dict[int, str | None], factor: int, count: int, start: int, shift: int) -> None:
    factor = min(factor, len(racks))
    placed = place_replicas(racks, factor, range(count), start, shift)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values(), default=0) - min((leaders[each] for each in racks), default=0) <= 1
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        if None not in racks.values():
            there = Counter(racks[each] for each in replicas)
            assert len(there) == min(factor, len(set(racks.values())))

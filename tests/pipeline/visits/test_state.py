"""What a stream of visits remembers: the clocks of new and idle partitions. And the comparison of two counts."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.visits.checkpointed_state import Idle, VisitsState, joined
from kbroker.pipeline.visits.recount import differences, final_days
from kbroker.pipeline.visits.stream import VisitsOptions


def test_nothing_is_over_while_a_partition_has_no_clock() -> None:
    assert VisitsState().slowest() is None
    assert VisitsState(ends={"0": 5, "1": 0}, clocks={"0": 70}).slowest() is None
    assert VisitsState(ends={"0": 5, "1": 2}, clocks={"0": 70, "1": 60}).slowest() == 60


def test_a_new_partition_begins_where_the_slowest_is() -> None:
    state = VisitsState(ends={"0": 5, "1": 2}, clocks={"0": 70, "1": 60})
    assert state.newcomers({"0": 9, "1": 9, "2": 3}) == [(2, 0, 60)]
    assert state.newcomers({"0": 9, "1": 9}) == []
    assert VisitsState().newcomers({"0": 9}) == []


def test_a_clock_that_is_set_again_and_again_is_kept_once() -> None:
    assert joined([(1, 7, 10), (1, 7, 30), (1, 7, 20), (1, 8, 40), (0, 7, 1)]) == [(1, 7, 30), (1, 8, 40), (0, 7, 1)]


def test_only_a_partition_that_stands_still_for_long_is_not_waited_for() -> None:
    idle = Idle(kept_ms=100, idle_s=60)
    ends, clocks = {"0": 10, "1": 4, "2": 0}, {"0": 1000, "1": 850}
    last = {0: 10, 1: 4, 2: 0}

    def at(now: float) -> list[tuple[int, int, int]]:
        return idle.set_clocks(ends, clocks, lambda: last, now)

    assert at(0) == []
    assert at(59) == []
    assert sorted(at(60)) == [(1, 4, 900), (2, 0, 900)]
    last[1] = 5  # something arrived that is not read yet
    assert at(61) == [(2, 0, 900)]
    ends["1"] = 5
    assert at(120) == [(2, 0, 900)]
    assert sorted(at(180)) == [(1, 5, 900), (2, 0, 900)]
    clocks["1"] = clocks["2"] = 900  # that is close enough
    assert idle.set_clocks(ends, clocks, lambda: pytest.fail("nobody is behind"), 300) == []
    clocks["1"] = 850
    assert at(301) == []  # the partition begins anew


def test_without_any_record_no_clock_is_set() -> None:
    assert Idle(100, 0).set_clocks({"0": 0}, {}, lambda: {0: 0}, 0) == []


def test_the_topics_are_three() -> None:
    for names in (("t", "t", "m"), ("t", "v", "t"), ("t", "v", "v")):
        topic, out, dead = names
        with pytest.raises(PipelineError, match="must be three"):
            VisitsOptions(topic, "lookup.csv", "table", out, "checkpoint", dead)


def row(organisation: str, day: str, visits: int, late: int = 0, *, final: bool = False) -> dict[str, Any]:
    return {"organisation": organisation, "day": day, "visits": visits, "events": visits, "late": late, "final": final}


def test_all_days_up_to_a_final_one_are_compared() -> None:
    streamed = [row("a", "2026-11-20", 3, final=True), row("a", "2026-11-21", 9)]
    recounted = [row("a", "2026-11-19", 2), row("a", "2026-11-20", 3), row("a", "2026-11-21", 1)]
    assert final_days(streamed) == ["2026-11-20"]
    assert differences(recounted[1:], streamed, None) == []
    assert differences(recounted, streamed, "2026-11-20") == []
    assert [line[:13] for line in differences(recounted, streamed, None)] == ["a, 2026-11-19"]  # it is in no table
    assert [line[:13] for line in differences([], streamed, None)] == ["a, 2026-11-20"]
    assert differences(recounted, [row("a", "2026-11-20", 1)], None) == []


def test_late_events_are_compared_only_where_both_have_the_same_records() -> None:
    streamed, recounted = [row("a", "2026-11-20", 3, 4, final=True)], [row("a", "2026-11-20", 3, 5)]
    assert len(differences(recounted, streamed, None)) == 1
    assert differences(recounted, streamed, None, late=False) == []

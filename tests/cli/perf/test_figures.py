"""Times that are counted in buckets, and the figures that are computed from them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.cli.perf.figures import PERCENTILES, Run, Times
from tests.tries import tries


def counted(seconds: list[float]) -> Times:
    times = Times()
    for each in seconds:
        times.add(each)
    return times


@settings(max_examples=tries(300))
@given(
    st.lists(st.floats(min_value=1e-6, max_value=4_000), min_size=1, max_size=300), st.sampled_from(list(PERCENTILES))
)
def test_a_percentile_is_that_of_all_times_within_a_thousandth(seconds, name):
    part = PERCENTILES[name]
    rank = max(1, math.ceil(len(seconds) * part - 1e-9))
    exact = sorted(seconds)[rank - 1]
    assert counted(seconds).percentile(part) == pytest.approx(exact, rel=0.001, abs=1e-6)


def test_a_summary_in_ms():
    summary = counted([each / 1000 for each in range(1, 1001)]).summary_ms()
    assert (summary["min"], summary["max"], summary["mean"]) == (1.0, 1000.0, 500.5)
    assert [summary[each] for each in PERCENTILES] == pytest.approx([500, 950, 990, 999], rel=0.001)
    assert set(Times().summary_ms().values()) == {None}


def test_memory_does_not_grow_with_records():
    times = counted([(each % 50_000) / 1_000_000 for each in range(200_000)])
    assert times.count == 200_000
    assert len(times._buckets) < 8_000


def test_rates_are_of_the_time_between_first_and_last():
    run = Run(began=10.0, ended=12.0, records=4_000, octets=4 * 1024 * 1024)
    assert run.rates() == {"records": 4_000, "seconds": 2.0, "mb": 4.0, "records_per_s": 2_000.0, "mb_per_s": 2.0}
    assert Run(began=10.0).rates()["records_per_s"] == 0.0

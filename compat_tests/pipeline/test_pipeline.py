"""Runs every scenario of the pipeline on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.pipeline import kills, scenarios, upstream, visit_scenarios
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


slow = pytest.mark.skipif(FORM != "long", reason="variants of other scenarios: only with KBROKER_TESTS=long")
LONG = {"a_stream_keeps_its_manifest_short", "visits_of_odd_events_go_where_they_belong"}
"""Scenarios for `make torture`: what they vary is in others, and they take half a minute."""
ALL = [*scenarios.scenarios, *upstream.scenarios, *visit_scenarios.scenarios, *kills.scenarios]
CASES = [pytest.param(each, id=each.name, marks=[slow] if each.name in LONG else []) for each in ALL]


@pytest.mark.parametrize("scenario", CASES)
def test_pipeline(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

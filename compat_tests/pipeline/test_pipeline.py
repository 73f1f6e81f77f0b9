"""Runs every scenario of the pipeline on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.pipeline import kills, scenarios, upstream, visit_scenarios

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


ALL = [*scenarios.scenarios, *upstream.scenarios, *visit_scenarios.scenarios, *kills.scenarios]


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_pipeline(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

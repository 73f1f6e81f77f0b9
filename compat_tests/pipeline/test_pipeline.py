"""Runs every scenario of the pipeline on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.pipeline import visit_scenarios
from compat_tests.pipeline.scenarios import scenarios

assert visit_scenarios.scenarios is scenarios  # they are added to the others

pytestmark = [
    pytest.mark.spark,
    # py4j leaves the sockets of its threads to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("scenario", list(scenarios), ids=lambda s: s.name)
def test_pipeline(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

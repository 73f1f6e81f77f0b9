"""Runs every Spark scenario on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.spark.scenarios import scenarios

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("scenario", list(scenarios), ids=lambda s: s.name)
def test_spark(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

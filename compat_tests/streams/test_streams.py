"""Runs the Streams application on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.streams.scenarios import scenarios


LONG = {"counts_by_the_streams_protocol"}
"""Scenarios that wait for heartbeats every 5 s. compat_tests/wire has what their clients ask."""
CASES = [pytest.param(each, id=each.name, marks=[pytest.mark.long] if each.name in LONG else []) for each in scenarios]


@pytest.mark.java
@pytest.mark.parametrize("scenario", CASES)
def test_streams(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

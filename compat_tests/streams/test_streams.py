"""Runs the Streams application on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.streams.scenarios import scenarios
from tests.tries import FORM

slow = pytest.mark.skipif(FORM != "long", reason="waits for heartbeats every 5 s: only with KBROKER_TESTS=long")
LONG = {"counts_by_the_streams_protocol"}
"""Scenarios for `make torture`. compat_tests/wire contains the requests that their clients send."""
CASES = [pytest.param(each, id=each.name, marks=[slow] if each.name in LONG else []) for each in scenarios]


@pytest.mark.java
@pytest.mark.parametrize("scenario", CASES)
def test_streams(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

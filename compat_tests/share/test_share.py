"""Runs the application of share groups on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from compat_tests.share.scenarios import scenarios


@pytest.mark.java
@pytest.mark.parametrize("scenario", list(scenarios), ids=lambda scenario: scenario.name)
def test_share(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

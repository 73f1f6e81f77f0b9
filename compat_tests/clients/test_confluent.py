"""Every scenario of confluent-kafka on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.clients.confluent import (  # noqa: F401 - registered
    admin_scenarios,
    consumer_protocol,
    consuming,
    groups,
    producing,
    scenarios,
    transactions,
)
from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario

pytestmark = pytest.mark.java


@pytest.mark.parametrize("scenario", list(scenarios), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

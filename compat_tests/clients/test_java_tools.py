"""Every scenario of Kafka's own tools on both brokers."""

from __future__ import annotations

import pytest

from compat_tests.clients.java_tools import catalog, scenarios  # noqa: F401 - the import registers the scenarios
from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario
from tests.tries import FORM

pytestmark = pytest.mark.java
slow = pytest.mark.skipif(FORM != "long", reason="some twenty tools, a second each: only with KBROKER_TESTS=long")
LONG = {"share_groups", "streams_groups"}
"""Scenarios for `make torture`. compat_tests/wire contains the requests that the tools send."""
CASES = [pytest.param(each, id=each.name, marks=[slow] if each.name in LONG else []) for each in scenarios]


@pytest.mark.parametrize("scenario", CASES)
def test_scenario(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)

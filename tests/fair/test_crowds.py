"""Crowds of connections, each for a moment: the limits detect a total stop, not slowness."""

from __future__ import annotations

import pytest

from compat_tests.harness.brokers import KBroker
from tests.fair import crowds
from tests.tries import FORM

pytestmark = pytest.mark.long

SECONDS = 1.5 if FORM == "long" else 0.7
LONGEST_MS = 2_000
GROWTH_MB = 250


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with KBroker(tmp_path_factory.mktemp("crowds"), {}) as broker:
        crowds.prepare(broker.bootstrap)
        yield broker


@pytest.mark.parametrize("crowd", crowds.CROWDS)
def test_a_quiet_client_is_served_beside_a_crowd(broker, crowd):
    ((name, longest, middle, grown),) = [each for each in crowds.measure(broker, SECONDS, crowd) if each[0] == crowd]
    print(f"{name}: waits {longest:.1f} ms at most, {middle:.2f} ms mostly; memory grows by {grown:.0f} MB")
    assert longest < LONGEST_MS
    assert grown < GROWTH_MB

"""A short run, on both brokers, of operations that earlier operations make expensive.

The limits are loose: they only detect an operation that hangs. `python -m tests.fair.built_up` runs the full size.
"""

from __future__ import annotations

import pytest

from compat_tests.harness.brokers import BrokerProcess
from tests.fair import built_up
from tests.figures import figure
from tests.tries import FORM

pytestmark = pytest.mark.long

SIZES = built_up.Sizes(segments=200, partitions=300, producers=2_000, seconds=1.0, rolls=2)
LONGEST_MS = 2_000
GROWTH_MB = 250


def told(running: BrokerProcess, story: str) -> list[built_up.Measured]:
    parts = list(built_up.measure(running, built_up.STORIES[story], SIZES))
    assert running.running, running.log_tail()
    for part in parts:
        figure(f"{part.name}, {running.name}", f"longest wait {part.longest:.0f} ms, +{part.grown:.0f} MB")
    return parts


def test_a_quiet_client_is_served_meanwhile() -> None:
    with built_up.broker(False) as running:
        for story in built_up.STORIES:
            for part in told(running, story):
                assert part.longest < LONGEST_MS, part
                assert part.grown < GROWTH_MB, part


@pytest.mark.java
@pytest.mark.skipif(FORM != "long", reason="asks Apache Kafka alone, which does not change: only in make torture")
def test_apache_kafka_goes_through_the_same() -> None:
    with built_up.broker(True) as running:
        assert all(told(running, story) for story in built_up.STORIES)

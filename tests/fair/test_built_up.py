"""What was built up before and is dear now, in short, on both brokers: the limits catch what stops everybody.

In full size it is `python -m tests.fair.built_up`.
"""

from __future__ import annotations

import pytest

from tests.fair import built_up
from tests.figures import figure

pytestmark = pytest.mark.long

SIZES = built_up.Sizes(segments=200, partitions=300, producers=2_000, seconds=1.0)
LONGEST_MS = 2_000
GROWTH_MB = 250


def tell(story: str, *, kafka: bool) -> list[built_up.Measured]:
    with built_up.broker(kafka) as running:
        parts = list(built_up.measure(running, built_up.STORIES[story], SIZES))
        assert running.running, running.log_tail()
    for part in parts:
        figure(f"{part.name}{', Apache Kafka' if kafka else ''}", f"longest wait {part.longest:.0f} ms")
    return parts


@pytest.mark.parametrize("story", built_up.STORIES)
def test_a_quiet_client_is_served_meanwhile(story: str) -> None:
    for part in tell(story, kafka=False):
        assert part.longest < LONGEST_MS, part
        assert part.grown < GROWTH_MB, part


@pytest.mark.java
@pytest.mark.parametrize("story", built_up.STORIES)
def test_apache_kafka_does_the_same_story(story: str) -> None:
    assert tell(story, kafka=True)

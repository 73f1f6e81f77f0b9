"""A waiting Fetch is answered, whatever happens when it is tried again."""

from __future__ import annotations

import asyncio
import math

import pytest

from kbroker.handlers.fetch import DelayedFetch
from kbroker.topic_metrics import TopicMetrics


class Failing:
    """A Fetch whose files can no longer be read."""

    max_wait_ms = 20
    matures_in_ms = math.inf
    traffic = TopicMetrics()
    partitions = ()

    def attempt(self, *, last):
        raise OSError(5, f"Input/output error, {last=}")


def test_a_fault_while_it_waits_ends_the_wait():
    async def story():
        with pytest.raises(OSError, match="Input/output"):
            await asyncio.wait_for(DelayedFetch(Failing()).future, 10)

    asyncio.run(story())

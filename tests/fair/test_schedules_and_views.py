"""A short run of what schedule topics, views, filters and stuck groups cost others.

The limits are loose: they only detect an operation that hangs. `python -m tests.fair.schedules_and_views` runs the full
size.
"""

from __future__ import annotations

import pytest

from tests.fair import built_up
from tests.fair.schedules_and_views import STORIES, Sizes
from tests.figures import figure
from tests.tries import FORM

pytestmark = pytest.mark.long

SIZES = Sizes() if FORM == "long" else Sizes(records=1_500, views=20, groups=5, megabytes=1, seconds=0.5)
LONGEST_MS = 2_000
GROWTH_MB = 250 if FORM != "long" else 1_000


@pytest.mark.parametrize("story", STORIES)
def test_a_quiet_client_is_served_meanwhile(story: str) -> None:
    with built_up.broker(False) as running:
        for part in built_up.measure(running, STORIES[story], SIZES):
            figure(part.name, f"longest wait {part.longest:.0f} ms, +{part.grown:.0f} MB, {part.seconds:.1f} s")
            assert part.longest < LONGEST_MS, part
            assert part.grown < GROWTH_MB, part
        assert running.running, running.log_tail()

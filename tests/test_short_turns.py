"""The interpreter switches often between threads while somebody holds short turns, and no longer."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from kbroker.long_work import WORK_BESIDE_SECONDS, ShortTurns
from kbroker.scheduling.shared import Shared
from tests.scheduling.world import Clock, Ids, Places, Targets


def test_turns_are_short_until_the_last_holder_ends() -> None:
    before = sys.getswitchinterval()
    one, two = ShortTurns(), ShortTurns()
    for _ in range(2):  # a second end is no other holder's
        one.end()
        assert sys.getswitchinterval() == pytest.approx(WORK_BESIDE_SECONDS)
    two.end()
    assert sys.getswitchinterval() == before


def test_the_thread_of_the_schedules_has_short_turns() -> None:
    before = sys.getswitchinterval()

    async def story() -> None:
        clock = Clock()
        shared = Shared(
            clock, lambda _: None, lambda _: 1, Ids(), Targets(random.Random(0), clock), Places(), lambda _: True
        )
        assert sys.getswitchinterval() == before
        assert await shared.call(sys.getswitchinterval) == pytest.approx(WORK_BESIDE_SECONDS)
        shared.close()
        with pytest.raises(asyncio.CancelledError):  # of a follower that still replays the log of a deleted topic
            await shared.call(sys.getswitchinterval)

    asyncio.run(story())
    assert sys.getswitchinterval() == before

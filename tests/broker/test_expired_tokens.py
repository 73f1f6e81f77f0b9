"""The removal of expired delegation tokens, without a broker."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.broker.periodic_work import ExpiredTokens


def test_a_removal_that_is_stopped_before_it_begins_leaves_nothing_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    async def scenario() -> None:
        clock: Any = SimpleNamespace(now_ms=lambda: 0, monotonic_ms=lambda: 0.0)
        metadata: Any = SimpleNamespace(state=SimpleNamespace(tokens=[]), is_controller=True)
        settings: Any = SimpleNamespace(check_interval_ms=0)
        tokens = ExpiredTokens(metadata, settings, clock)
        tokens.tick()
        tokens.close()
        await asyncio.sleep(0)

    asyncio.run(scenario())
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []  # other tests leave sockets

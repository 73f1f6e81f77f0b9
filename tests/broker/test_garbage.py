"""Full garbage collections wait for a calm moment."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kbroker.broker import garbage
from kbroker.broker.garbage import GarbageCollection


@pytest.mark.parametrize(("counted", "busy", "collects"), [(9, 0.0, 0), (10, 0.0, 1), (500, 9.0, 0), (2_000, 9.0, 1)])
def test_a_full_collection_is_made_when_it_is_calm_or_overdue(monkeypatch, counted, busy, collects):
    made, used = [], [0.0]

    async def story():
        before = gc.get_threshold()
        collection = GarbageCollection(asyncio.get_running_loop())
        collection.begin()
        try:
            assert gc.get_threshold()[2] > 1_000_000
            made.clear()
            used[0] += busy
            collection._check()
        finally:
            collection.close()
        assert gc.get_threshold() == before

    monkeypatch.setattr(garbage.gc, "collect", lambda: made.append(1))
    monkeypatch.setattr(garbage.gc, "get_count", lambda: (0, 0, counted))
    monkeypatch.setattr(garbage.gc, "freeze", lambda: None)
    monkeypatch.setattr(garbage.time, "process_time", lambda: used[0])
    asyncio.run(story())
    assert len(made) == collects

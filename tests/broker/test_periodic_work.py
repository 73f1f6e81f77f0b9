"""A broker's periodic work is done in pieces, between which the loop serves clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker import long_work
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.long_work import in_slices, turn
from tests.broker.in_effect import in_effect
from tests.log.builders import batch
from tests.turns import turns

SEGMENTS = 400


def test_a_slice_ends_and_others_have_their_turn(monkeypatch):
    done = []
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(long_work, "perf_counter", lambda: clock.now)

    async def work() -> None:
        for step in range(3):
            done.append(f"step {step}")
            clock.now += 1
            await turn

    async def others() -> None:
        for number in range(3):
            done.append(f"turn {number}")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(in_slices(work()), others())

    asyncio.run(both())
    assert done == ["step 0", "turn 0", "step 1", "turn 1", "step 2", "turn 2"]


@pytest.mark.long
def test_thousands_of_segments_are_deleted_a_few_at_a_time(tmp_path):
    """DeleteRecords and retention remove only a limited number of segments before the loop is free again."""

    async def run() -> None:
        node = await BrokerNode.start(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}))
        try:
            node.controller.put_topics([node.controller.plan_topic("t", 1, 1, None, {"segment.ms": "1"})])
            await in_effect(node)
            log = node.replicas.leader("t", 0).log
            now = node.clock.now_ms()
            for index in range(SEGMENTS):
                log.append_as_leader(batch(timestamp=now + 10 * index), 0, now)
            log.set_high_watermark(log.log_end_offset)
            log.advance_log_start(SEGMENTS // 2, now)
            assert log.log_start_offset == SEGMENTS // 2
            assert len(log.segments) >= SEGMENTS - 16
            steps = _counted(node.logs.due(now + 10_000), lambda: len(log.segments))
            assert len(log.segments) == SEGMENTS // 2
            log.update_config(replace(log.config, retention_bytes=0))
            steps += _counted(node.logs.due(now + 1_000_000), lambda: len(log.segments))
            assert len(log.segments) == 1
            assert max(steps) <= 16
        finally:
            await node.stop()

    asyncio.run(run())


def _counted(work: Coroutine[Any, Any, None], count: Callable[[], int]) -> list[int]:
    """Run work to its end; return by how much the count fell in each step."""
    falls, before, end = [], count(), time.monotonic() + 60
    for _ in turns(work):
        falls.append(before - count())
        before = count()
        assert time.monotonic() < end
    return falls

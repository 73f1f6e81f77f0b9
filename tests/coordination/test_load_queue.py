"""The queue of loads: which are done immediately, which in slices, and which not at all."""

from __future__ import annotations

import asyncio
import gc

import pytest

from kbroker.coordination import loading
from kbroker.coordination.loading import LoadQueue
from kbroker.long_work import turn


async def steps(done: list[str], name: str, count: int) -> None:
    for _ in range(count):
        done.append(name)
        await turn


async def settled(queue: LoadQueue) -> None:
    for _ in range(100):
        if queue._task is None:
            return
        await asyncio.sleep(0)
    raise AssertionError("the loads do not end")


def test_a_short_load_needs_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
    done: list[str] = []
    LoadQueue("test").begin(steps(done, "a", 3), lambda: True)
    assert done == ["a", "a", "a"]


def test_what_takes_longer_goes_on_in_order_and_what_nobody_wants_is_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[str]:
        done: list[str] = []
        queue = LoadQueue("test")
        monkeypatch.setattr(loading, "SLICE_SECONDS", -1.0)
        for name in "abc":
            queue.begin(steps(done, name, 2), lambda name=name: name != "b")
        assert done == []
        monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
        await settled(queue)
        return done

    assert asyncio.run(scenario()) == ["a", "a", "c", "c"]


def test_nothing_goes_on_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[str]:
        done: list[str] = []
        queue = LoadQueue("test")
        monkeypatch.setattr(loading, "SLICE_SECONDS", -1.0)
        queue.begin(steps(done, "a", 2), lambda: True)
        monkeypatch.setattr(loading, "SLICE_SECONDS", 60.0)
        queue.close()
        for _ in range(10):
            await asyncio.sleep(0)
        return done

    assert asyncio.run(scenario()) == []


def test_a_queue_that_ends_before_its_first_turn_leaves_no_load_unawaited(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    async def scenario() -> None:
        queue = LoadQueue("test")
        monkeypatch.setattr(loading, "SLICE_SECONDS", -1.0)
        for name in "ab":
            queue.begin(steps([], name, 2), lambda: True)
        queue.close()
        await asyncio.sleep(0)

    gc.collect()  # what earlier tests have left open is none of this one's
    recwarn.clear()
    asyncio.run(scenario())
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []  # other tests leave sockets

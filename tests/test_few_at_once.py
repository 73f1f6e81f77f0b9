"""Work that takes memory: only a few at a time, in order, and waiting work takes no processor time."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from kbroker.long_work import FewAtOnce, turn, whole


class Log:
    """Work with a number of steps, each of which is recorded."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.closed: list[str] = []

    async def work(self, name: str, count: int, error: Exception | None = None) -> str:
        try:
            for _ in range(count):
                self.steps.append(name)
                await turn
            if error is not None:
                raise error
            return name
        finally:
            self.closed.append(name)

    def begin(self, name: str, count: int, error: Exception | None = None) -> Callable[[], Coroutine[Any, Any, str]]:
        return partial(self.work, name, count, error)


def test_a_result_and_an_error_reach_their_owner() -> None:
    line: FewAtOnce[str] = FewAtOnce(2)
    log = Log()
    assert whole(line.run(log.begin("a", 3))) == "a"
    with pytest.raises(ValueError, match="no"):
        whole(line.run(log.begin("b", 3, ValueError("no"))))
    assert len(line) == 0


def test_only_a_few_have_begun_and_every_slice_brings_all_further() -> None:
    line: FewAtOnce[str] = FewAtOnce(2)
    log = Log()
    runs = {name: line.run(log.begin(name, 4)) for name in "abcd"}
    for run in runs.values():
        run.send(None)
    assert set(log.steps) == {"a", "b"}
    results = []
    turns = 0
    while runs:
        for name, run in list(runs.items()):
            turns += 1
            try:
                run.send(None)
            except StopIteration as end:
                results.append(end.value)
                del runs[name]
    assert sorted(results) == ["a", "b", "c", "d"]
    assert log.steps.index("c") > log.steps.index("a")
    assert log.steps.index("d") > log.steps.index("c")
    assert turns <= 4 * 5 + 4, "a slice that brings nothing further is one that only takes a result"
    assert len(line) == 0


def test_what_has_begun_goes_on_if_there_is_room_and_begins_again_if_not() -> None:
    line: FewAtOnce[str] = FewAtOnce(1)
    log = Log()
    begun = log.work("a", 3)
    begun.send(None)
    first = line.run(log.begin("a", 3), begun)
    first.send(None)
    assert log.steps == ["a", "a"]
    other = log.work("b", 3)
    other.send(None)
    second = line.run(log.begin("b", 3), other)
    second.send(None)
    assert log.closed == ["b"], "what waits holds nothing"
    assert (whole(first), whole(second)) == ("a", "b")
    assert log.steps.count("b") == 4


def test_whoever_gives_up_leaves_room() -> None:
    line: FewAtOnce[str] = FewAtOnce(1)
    log = Log()
    runs = [line.run(log.begin(name, 5)) for name in "abc"]
    for run in runs:
        run.send(None)
    runs[1].close()
    runs[0].close()
    assert whole(runs[2]) == "c"
    assert "b" not in log.steps
    assert len(line) == 0


class Held:
    """Stands for a large object."""


def test_an_error_keeps_nothing_of_the_work_that_failed() -> None:
    """The memory, some megabytes for each of many clients, is free without waiting for the garbage collector."""
    seen: list[weakref.ref[Held]] = []

    async def fail() -> str:
        held = Held()
        seen.append(weakref.ref(held))
        await turn
        raise ValueError(f"no {held is None}")

    line: FewAtOnce[str] = FewAtOnce(2)
    gc.disable()
    try:
        for begun in (None, fail()):
            with contextlib.suppress(ValueError):
                whole(line.run(fail, begun))
        assert [each() for each in seen] == [None, None]
    finally:
        gc.enable()

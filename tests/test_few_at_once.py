"""Work that takes memory: few at once, in order, and nobody's time is spent on waiting."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from functools import partial

import pytest

from kbroker.divided import Divided, whole
from kbroker.few_at_once import FewAtOnce


class Log:
    """Work of so many steps, each of which is noted."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.closed: list[str] = []

    def work(self, name: str, count: int, error: Exception | None = None) -> Divided[str]:
        try:
            for _ in range(count):
                self.steps.append(name)
                yield
            if error is not None:
                raise error
            return name
        finally:
            self.closed.append(name)

    def begin(self, name: str, count: int, error: Exception | None = None) -> Callable[[], Divided[str]]:
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
        next(run)
    assert set(log.steps) == {"a", "b"}
    results = []
    turns = 0
    while runs:
        for name, run in list(runs.items()):
            turns += 1
            try:
                next(run)
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
    next(begun)
    first = line.run(log.begin("a", 3), begun)
    next(first)
    assert log.steps == ["a", "a"]
    other = log.work("b", 3)
    next(other)
    second = line.run(log.begin("b", 3), other)
    next(second)
    assert log.closed == ["b"], "what waits holds nothing"
    assert (whole(first), whole(second)) == ("a", "b")
    assert log.steps.count("b") == 4


def test_whoever_gives_up_leaves_room() -> None:
    line: FewAtOnce[str] = FewAtOnce(1)
    log = Log()
    runs = [line.run(log.begin(name, 5)) for name in "abc"]
    for run in runs:
        next(run)
    runs[1].close()
    runs[0].close()
    assert whole(runs[2]) == "c"
    assert "b" not in log.steps
    assert len(line) == 0


class Held:
    """Something large."""


def test_an_error_keeps_nothing_of_the_work_that_failed() -> None:
    """Without waiting for the garbage collector: it may be some megabytes for each of many clients."""
    seen: list[weakref.ref[Held]] = []

    def fail() -> Divided[str]:
        held = Held()
        seen.append(weakref.ref(held))
        yield
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

"""Long work on the event loop: coroutines that yield to other work.

Owns `turn`, which yields; the runners of such coroutines; and the length of a slice of time. Never decides which work
goes first: network/turns.py does so for connections.

All work shares the event loop. Work that can take longer than about a millisecond (a list of a hundred thousand names,
a batch of a million records) is a coroutine that awaits `turn` once per element.
Its runner sends None until the slice of time is over, and continues in a later turn of the loop.
Between two turns nothing else runs; across one, everything may have changed, so state is looked up anew.

A connection runs its request this way (network/connection.py), without a task; a task uses `in_slices`. Therefore such
a coroutine may await futures, but nothing that needs the current task: no asyncio.timeout, no task group.
Code that is no coroutine (a callback, a step of a state machine) works `for_a_while`.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from itertools import islice
from time import perf_counter
from types import coroutine
from typing import Any, TypeVar, cast

_T = TypeVar("_T")
_U = TypeVar("_U")
SLICE_SECONDS = 0.001
"""How long work runs before other work has a turn."""
SORTED_AT_ONCE = 2_000
"""Names sorted between two turns: about a millisecond."""


class _Turn:
    """Awaited to let other work go first: yields a bare None to the runner, which may continue at once."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


turn = _Turn()


def whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end at once: for short work that never waits, or while nothing else needs the loop."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            result: _T = end.value
            return result


def step(work: Coroutine[Any, Any, object]) -> bool:
    """Run work to its next turn; return whether it has ended, now or before. For work that awaits nothing else."""
    if getattr(work, "cr_frame", work) is None:
        return True
    try:
        work.send(None)
    except StopIteration:
        return True
    return False


def for_a_while(
    call: Callable[[], bool], seconds: float = SLICE_SECONDS, clock: Callable[[], float] | None = None
) -> bool:
    """Call `call` while it returns True, at least once, for a slice of time; return whether there is more to do."""
    now = clock or perf_counter
    until = now() + seconds
    while call():
        if now() >= until:
            return True
    return False


async def in_slices(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end, in a task, in slices of a millisecond; the loop is free between them."""
    return await _sliced(work)


@coroutine
def _sliced(work: Coroutine[Any, Any, _T]) -> Generator[Any, None, _T]:
    failed: BaseException | None = None
    until = perf_counter() + SLICE_SECONDS
    try:
        while True:
            waits = work.send(None) if failed is None else work.throw(failed)
            failed = None
            if waits is None and perf_counter() < until:
                continue
            try:
                yield waits
            except BaseException as error:  # noqa: BLE001 - the task is cancelled: the work may have to clean up
                failed = error
            until = perf_counter() + SLICE_SECONDS
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        work.close()


async def awaited(answer: _T | Awaitable[_T]) -> _T:
    """Return an answer, after waiting for it if it is an awaitable."""
    if hasattr(answer, "__await__"):
        return await cast("Awaitable[_T]", answer)
    return answer


def then(answer: _T | Awaitable[_T], finish: Callable[[_T], _U]) -> _U | Awaitable[_U]:
    """Apply `finish` to an answer; at once, without an awaitable, if the answer is not one."""

    async def later() -> _U:
        return finish(await cast("Awaitable[_T]", answer))

    return later() if hasattr(answer, "__await__") else finish(answer)


async def each(items: Iterable[_U], make: Callable[[_U], _T]) -> list[_T]:
    """Return the result of `make` for each item, one item between two turns."""
    made = []
    for item in items:
        made.append(make(item))
        await turn
    return made


async def every(items: Iterable[_U], work: Callable[[_U], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the result of `work` for each item, which may itself be long."""
    made = []
    for item in items:
        made.append(await work(item))
        await turn
    return made


async def in_order(names: Iterable[str]) -> Iterator[str]:
    """Return an iterator of the sorted names: pieces are sorted at once, and merged while they are consumed."""
    left = iter(names)
    pieces = []
    while piece := sorted(islice(left, SORTED_AT_ONCE)):
        pieces.append(piece)
        await turn
    return heapq.merge(*pieces)

"""Long work on the event loop: coroutines that give way.

Owns `turn`, which gives way, the runners of such coroutines, and how long a slice of time is. Never decides who goes
first: network/turns.py does for connections.

The event loop belongs to everybody. Work that takes longer than about a millisecond at its longest (a list of a hundred
thousand names, a batch of a million records) is a coroutine that awaits `turn` once an element.
Its runner sends None until the slice of time is over, and goes on in a later turn of the loop.
Between two turns nothing else runs; across one, everything may have changed, so state is looked up anew.

A connection runs its request so (network/connection.py), without a task; a task runs it by `in_slices`. So such a
coroutine may await futures, but not what asks for the current task: no asyncio.timeout, no task group.
What is no coroutine (a callback, a step of a state machine) does its work `for_a_while`.
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
"""How long work goes on before others have their turn."""
SORTED_AT_ONCE = 2_000
"""Names sorted between two turns: about a millisecond."""


class _Turn:
    """Awaited where others may go first: yields a bare None to the runner, which may go on at once."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield


turn = _Turn()


def whole(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end at once: where it is known to be short and to wait for nothing, or nobody waits."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            result: _T = end.value
            return result


def step(work: Coroutine[Any, Any, object]) -> bool:
    """Go on with work to its next turn; return whether it has ended. For work that awaits nothing else.

    Work that has ended before, or failed, has ended: a caller may not know.
    """
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
    """Call `call` as long as it returns True, once at least, for a slice of time; return whether it is to go on."""
    now = clock or perf_counter
    until = now() + seconds
    while call():
        if now() >= until:
            return True
    return False


async def in_slices(work: Coroutine[Any, Any, _T]) -> _T:
    """Run work to its end in slices of a millisecond, between which the loop is free; within a task."""
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
            except BaseException as error:  # noqa: BLE001 - the task is cancelled: the work may have to tidy up
                failed = error
            until = perf_counter() + SLICE_SECONDS
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        work.close()


async def awaited(answer: _T | Awaitable[_T]) -> _T:
    """Return an answer that is there already, or wait for it."""
    if hasattr(answer, "__await__"):
        return await cast("Awaitable[_T]", answer)
    return answer


def then(answer: _T | Awaitable[_T], finish: Callable[[_T], _U]) -> _U | Awaitable[_U]:
    """Return what `finish` makes of an answer, at once where it is there already: for who must not wait for nothing."""

    async def later() -> _U:
        return finish(await cast("Awaitable[_T]", answer))

    return later() if hasattr(answer, "__await__") else finish(answer)


async def each(items: Iterable[_U], make: Callable[[_U], _T]) -> list[_T]:
    """Return what `make` makes of each item, one item between two turns."""
    made = []
    for item in items:
        made.append(make(item))
        await turn
    return made


async def every(items: Iterable[_U], work: Callable[[_U], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return what `work` makes of each item, where that may itself be long."""
    made = []
    for item in items:
        made.append(await work(item))
        await turn
    return made


async def in_order(names: Iterable[str]) -> Iterator[str]:
    """Return names sorted, as they are taken: what is sorted at once are pieces, which are then merged."""
    left = iter(names)
    pieces = []
    while piece := sorted(islice(left, SORTED_AT_ONCE)):
        pieces.append(piece)
        await turn
    return heapq.merge(*pieces)

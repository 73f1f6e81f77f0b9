"""Work that can be left and taken up again: a generator that yields wherever others may go first.

Owns the shape and the two ways to run one. Never decides how long a slice may be: whoever runs the work does.

The event loop belongs to everybody, so what takes longer than about a millisecond at its longest (a list of a hundred
thousand names, a batch of a million records) is written as a generator with a bare `yield` once an element, and returns
its result. Whoever runs it goes on until its time is over, and comes back to it in a later turn of the loop.
Between two yields nothing else runs; across one, everything may have changed, so state is looked up anew.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from time import perf_counter
from typing import Any, TypeVar

_T = TypeVar("_T")
_U = TypeVar("_U")
Divided = Generator[None, None, _T]
"""Work in slices, with its result."""
SLICE_SECONDS = 0.001
"""How long work goes on before others have their turn."""


def whole(work: Generator[Any, Any, _T]) -> _T:
    """Run work to its end at once: where it is known to be short, or nobody waits."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result


async def in_slices(work: Generator[None, None, _T]) -> _T:
    """Run work to its end in slices of a millisecond, between which the loop is free."""
    try:
        while True:
            until = perf_counter() + SLICE_SECONDS
            while perf_counter() < until:
                next(work)
            await asyncio.sleep(0)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        work.close()


def each(items: Iterable[_U], make: Callable[[_U], _T]) -> Divided[list[_T]]:
    """Return what `make` makes of each item, one item between two yields."""
    made = []
    for item in items:
        made.append(make(item))
        yield
    return made


def every(items: Iterable[_U], work: Callable[[_U], Divided[_T]]) -> Divided[list[_T]]:
    """Return what `work` makes of each item, where that may itself be long."""
    made = []
    for item in items:
        result = yield from work(item)
        made.append(result)
        yield
    return made


def in_order(names: Iterable[str]) -> Divided[Iterator[str]]:
    """Return names sorted, as they are taken: what is sorted at once are pieces, which are then merged."""
    left = iter(names)
    pieces = []
    while piece := sorted(islice(left, SORTED_AT_ONCE)):
        pieces.append(piece)
        yield
    return heapq.merge(*pieces)


SORTED_AT_ONCE = 2_000
"""About a millisecond."""

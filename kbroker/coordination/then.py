"""Going on with an answer that is there already or comes later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from kbroker.divided import Divided

R = TypeVar("R")
T = TypeVar("T")


def then(answer: R | Awaitable[R], finish: Callable[[R], T]) -> T | Awaitable[T]:
    """Return what `finish` makes of an answer, at once where the answer is already there."""
    if hasattr(answer, "__await__"):
        return later(cast("Awaitable[R]", answer), finish)
    return finish(answer)


async def later(answer: Awaitable[R], finish: Callable[[R], T]) -> T:
    """Return what `finish` makes of an answer once it is there."""
    return finish(await answer)


def then_divided(answer: R | Awaitable[R], finish: Callable[[R], Divided[T]]) -> Divided[T | Awaitable[Divided[T]]]:
    """As `then`, where finishing may take long: work upon an answer that comes later is handed on as it is."""
    if hasattr(answer, "__await__"):
        return later(cast("Awaitable[R]", answer), finish)
    return (yield from finish(answer))

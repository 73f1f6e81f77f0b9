"""Going on with an answer that is there already or comes later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

R = TypeVar("R")
T = TypeVar("T")


def then(answer: R | Awaitable[R], finish: Callable[[R], T]) -> T | Awaitable[T]:
    """Return what `finish` makes of an answer, at once where the answer is already there."""
    if hasattr(answer, "__await__"):
        return _later(cast("Awaitable[R]", answer), finish)
    return finish(answer)


async def _later(answer: Awaitable[R], finish: Callable[[R], T]) -> T:
    return finish(await answer)

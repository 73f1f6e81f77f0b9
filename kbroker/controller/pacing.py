"""Splits long work on the metadata tree into slices of the event loop's time, and into a few requests at a time.

Owns both ways of splitting. Never knows the work itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from kbroker.long_work import turn

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 64
"""The number of concurrent requests to the tree.

The number is large enough to hide the tree's latency, and small enough for one turn of the event loop.
"""


TOGETHER = 16
"""The number of partitions written in one transaction."""


def pieces(items: Iterable[T]) -> list[list[T]]:
    """Split items into pieces for one write each."""
    whole = list(items)
    return [whole[at : at + TOGETHER] for at in range(0, len(whole), TOGETHER)]


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield each item, and let other work run after it."""
    for item in items:
        yield item
        await turn


async def all_of(items: Iterable[T], work: Callable[[T], Awaitable[R]], most: int = AT_ONCE) -> list[R]:
    """Run `work` for each item, at most `most` concurrently; return the results in order, or raise the first error."""
    todo = list(items)
    numbered = iter(enumerate(todo))
    results: dict[int, R] = {}

    async def take() -> None:
        for index, item in numbered:
            results[index] = await work(item)

    tasks = [asyncio.ensure_future(take()) for _ in range(min(most, len(todo)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[index] for index in range(len(todo))]

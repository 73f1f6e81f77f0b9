"""Long work in tests, turn by turn (kbroker/long_work.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from typing import Any

from kbroker.long_work import in_slices, step


def turns(work: Coroutine[Any, Any, object]) -> Iterator[None]:
    """Go on with work to its end, and stop at each of its turns."""
    try:
        while not step(work):
            yield
    finally:
        work.close()


async def nothing(*_args: object) -> None:
    """Be work that has nothing to do."""


class Parked:
    """Work that waits for a future."""

    def __init__(self, work: Coroutine[Any, Any, Any], future: asyncio.Future[Any]) -> None:
        self._work = work
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        self._future.cancel()
        self._work.close()

    async def until_done(self, seconds: float = 20) -> None:
        """Wait for the future."""
        done, _ = await asyncio.wait([self._future], timeout=seconds)
        assert done

    async def result(self) -> Any:
        """Return what the work returns, once the future is done."""
        await self.until_done()
        return await in_slices(self._work)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()


def run_on(work: Coroutine[Any, Any, Any], most_turns: int | None = None) -> Any:
    """Go on with work, as a connection does, until it ends or waits; return its result, or Parked.

    None: it has had `most_turns`.
    """
    try:
        while (waits := work.send(None)) is None:
            if most_turns is not None and (most_turns := most_turns - 1) <= 0:
                return None
    except StopIteration as end:
        return end.value
    return Parked(work, waits)

"""An event loop whose time jumps as soon as nothing is left to do: waits cost nothing, and runs repeat exactly."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
START_MS = 1_700_000_000_000


class VirtualLoop(asyncio.SelectorEventLoop):
    """All of asyncio's loop, except that it does not wait for threads."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0
        self._clock_resolution = 1e-6  # asyncio adds it to the time, which after months would be lost in rounding

    def time(self) -> float:
        return self.passed

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            # asyncio would remove it too, but wait in real time for the next one.
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if not self._ready and self._scheduled:
            self.passed = max(self.passed, self._scheduled[0]._when)
        super()._run_once()


class VirtualClock:
    """A broker's clock in such a loop."""

    def now_ms(self) -> int:
        return START_MS + int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


def run(main: Coroutine[Any, Any, T], within_s: float = 3600) -> T:
    """Run to the end; raises TimeoutError if that exceeds a limit of the loop's own time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_limited(main, within_s))


async def _limited(main: Coroutine[Any, Any, T], within_s: float) -> T:
    async with asyncio.timeout(within_s):
        return await main

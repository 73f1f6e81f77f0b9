"""The timing of Python's garbage collection in a broker's process.

Owns the process's settings of the collector, so only a process that runs a broker and nothing else may use this module.
Never affects objects that are freed by reference counting. Nearly all objects are freed in this way, because reference
cycles are rare here.

A full collection stops all other work, and Python starts one whenever the number of objects has grown by a quarter.
During a DescribeConfigs of 200,000 resources other requests waited 353 ms, but only 33 ms without such collections. So
this module starts full collections at calm moments, and excludes the objects of the start from all later collections.
"""

from __future__ import annotations

import asyncio
import gc
import time

CHECK_SECONDS = 10.0
CALM_SHARE = 0.05
"""The share of one processor's time below which a broker counts as calm."""
_YOUNG, _MIDDLE = 700, 10  # Python's own
_NEVER = 1_000_000_000
_WORTH_IT = 10
"""The number of middle collections, each of some thousand objects, after which a full collection is due."""
_OVERDUE = 2_000


class GarbageCollection:
    """Runs full collections at calm moments, from `begin` to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        self._used = 0.0

    def begin(self) -> None:
        """Take control of garbage collection after the broker's start."""
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        self._wait()

    def close(self) -> None:
        """Restore Python's own settings."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._before)

    def _wait(self) -> None:
        self._used = time.process_time()
        self._timer = self._loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        calm = time.process_time() - self._used < CALM_SHARE * CHECK_SECONDS
        if gc.get_count()[2] >= (_WORTH_IT if calm else _OVERDUE):
            gc.collect()
        self._wait()

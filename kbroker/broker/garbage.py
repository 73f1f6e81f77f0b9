"""When Python looks for garbage that refers to itself in a broker's process.

Owns the process's settings of that: so only a process that is nothing but a broker may use it. Never changes what is
freed at once, which is nearly all: next to nothing here lies in circles.

A full collection stops everything, and Python starts one whenever a quarter of the objects has been added: beside a
DescribeConfigs of 200,000 resources others waited 353 ms, and 33 without such collections. So full ones are made here,
while nobody asks for much, and what a start leaves behind is not looked at again.
"""

from __future__ import annotations

import asyncio
import gc
import time

LOOK_SECONDS = 10.0
CALM_SHARE = 0.05
"""Share of one processor that a broker uses while nobody asks for much."""
_YOUNG, _MIDDLE = 700, 10  # Python's own
_NEVER = 1_000_000_000
_WORTH_IT = 10
"""Collections of the middle generation since the last full one, each of some thousand new objects."""
_OVERDUE = 2_000


class GarbageCollection:
    """Full collections at calm moments, from `begin` to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before = gc.get_threshold()
        self._timer: asyncio.TimerHandle | None = None
        self._used = 0.0

    def begin(self) -> None:
        """Take over, once a start is over."""
        gc.freeze()
        gc.set_threshold(_YOUNG, _MIDDLE, _NEVER)
        self._wait()

    def close(self) -> None:
        """Leave it to Python again."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._before)

    def _wait(self) -> None:
        self._used = time.process_time()
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        calm = time.process_time() - self._used < CALM_SHARE * LOOK_SECONDS
        if gc.get_count()[2] >= (_WORTH_IT if calm else _OVERDUE):
            gc.collect()
        self._wait()

"""Loads of partitions, one after the other, in slices.

Owns the queue of loads, the task that runs them, and their share of the event loop. Also owns the log lines about
failed loads, and the pause before the next attempt. If the queue is empty, a short load is complete when `begin`
returns. Many loads that begin together share one slice. Never knows the steps of a load.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kbroker.coordination.shard import UnreadableRecord
from kbroker.long_work import SLICE_SECONDS, for_a_while, step

RELOAD_MS, RELOAD_MAX_MS = 1_000, 60_000

log = logging.getLogger(__name__)


def pause_ms(attempts: int) -> int:
    """Return the pause after `attempts` failures: one second at first, then doubled each time, up to a minute."""
    return min(RELOAD_MS << min(attempts, 10), RELOAD_MAX_MS)


class LoadQueue:
    """The loads of one coordinator. A load must yield often and raise nothing."""

    __slots__ = ("_burst_start", "_loads", "_name", "_task")

    def __init__(self, name: str) -> None:
        self._name = name
        self._loads: deque[tuple[Coroutine[Any, Any, None], Callable[[], bool]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._burst_start = 0.0

    def begin(self, steps: Coroutine[Any, Any, None], is_wanted: Callable[[], bool]) -> None:
        """Begin a load. A long load continues in the event loop, and is dropped once `is_wanted` returns False."""
        now = time.perf_counter()
        if now - self._burst_start > 5 * SLICE_SECONDS:
            self._burst_start = now
        left = self._burst_start + SLICE_SECONDS - now
        if not self._loads and left > 0 and not for_a_while(partial(_has_more, steps), left):
            return
        self._loads.append((steps, is_wanted))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"load {self._name}")

    def failed(self, partition: int, attempts: int, error: BaseException, problem: str) -> int:
        """Log why a partition must be loaded again, with a trace the first time; return the pause in ms."""
        delay_ms = pause_ms(attempts)
        text = "%s %d %s, the next load is in %d s: %s"
        if isinstance(error, UnreadableRecord):  # the error's text names the fault and the offset
            log.error(text, self._name, partition, problem, delay_ms // 1000, error)
        else:
            shown = error if attempts == 0 else None
            log.error(text, self._name, partition, problem, delay_ms // 1000, repr(error), exc_info=shown)
        return delay_ms

    def close(self) -> None:
        """Drop all loads."""
        if self._task is not None:
            self._task.cancel()
        self._close_all()  # the task may never have run

    def _close_all(self) -> None:
        while self._loads:
            self._loads.pop()[0].close()

    async def _run(self) -> None:
        try:
            while self._loads:
                steps, is_wanted = self._loads[0]
                if not (is_wanted() and for_a_while(partial(_has_more, steps), SLICE_SECONDS)):
                    self._loads.popleft()[0].close()
                await asyncio.sleep(0)
        finally:
            self._task = None
            self._close_all()


def _has_more(steps: Coroutine[Any, Any, None]) -> bool:
    return not step(steps)

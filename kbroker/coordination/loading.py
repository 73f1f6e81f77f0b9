"""Loads of partitions, one after the other, a slice at a time.

Owns which are under way, the task that goes on with them, how much of them is done at once, what is told of one that
failed, and how long it rests before the next: where nothing is queued a short load is over when `begin` returns, and
many that begin together share one slice. Never knows what a load does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kbroker.coordination.interfaces import UnreadableRecord
from kbroker.long_work import SLICE_SECONDS, for_a_while, step

RELOAD_MS, RELOAD_MAX_MS = 1_000, 60_000

log = logging.getLogger(__name__)


def pause_ms(attempts: int) -> int:
    """Return when a load is tried again after as many failed before: a second, then twice as long, up to a minute."""
    return min(RELOAD_MS << min(attempts, 10), RELOAD_MAX_MS)


class LoadQueue:
    """The loads of one coordinator; a load gives way often and raises nothing."""

    __slots__ = ("_burst_start", "_loads", "_name", "_task")

    def __init__(self, name: str) -> None:
        self._name = name
        self._loads: deque[tuple[Coroutine[Any, Any, None], Callable[[], bool]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._burst_start = 0.0

    def begin(self, steps: Coroutine[Any, Any, None], is_wanted: Callable[[], bool]) -> None:
        """Begin a load, and go on with it in the loop where it takes longer; it is left off once nobody wants it."""
        now = time.perf_counter()
        if now - self._burst_start > 5 * SLICE_SECONDS:
            self._burst_start = now
        left = self._burst_start + SLICE_SECONDS - now
        if not self._loads and left > 0 and not for_a_while(partial(_goes_on, steps), left):
            return
        self._loads.append((steps, is_wanted))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"load {self._name}")

    def failed(self, partition: int, attempts: int, error: BaseException, what: str) -> int:
        """Tell why a partition has to be loaded anew, with a trace the first time; return after how many ms."""
        delay_ms = pause_ms(attempts)
        text = "%s %d %s, the next load is in %d s: %s"
        if isinstance(error, UnreadableRecord):  # it says what is wrong, and where
            log.error(text, self._name, partition, what, delay_ms // 1000, error)
        else:
            shown = error if attempts == 0 else None
            log.error(text, self._name, partition, what, delay_ms // 1000, repr(error), exc_info=shown)
        return delay_ms

    def close(self) -> None:
        """Go on with nothing."""
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
                if not (is_wanted() and for_a_while(partial(_goes_on, steps), SLICE_SECONDS)):
                    self._loads.popleft()[0].close()
                await asyncio.sleep(0)
        finally:
            self._task = None
            self._close_all()


def _goes_on(steps: Coroutine[Any, Any, None]) -> bool:
    return not step(steps)

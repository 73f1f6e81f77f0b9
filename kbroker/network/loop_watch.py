"""The event loop of a broker, and a watch that reports work that blocked the loop for too long (a hold).

Owns the limit, the count and the lines in the log. Never stops any work. The loop is uvloop's if uvloop is installed,
otherwise asyncio's own.

Requests are measured where they run, so the line in the log can name them. Python's garbage collection, which stops all
threads, is also measured. A timer that fires late detects other holds of the loop. The line cannot name the cause of
such a hold. A short hold between two ticks of the timer is not detected. If the processors are overloaded or a disk is
slow, the named work may only have waited. Therefore each line contains an upper bound of the thread's working time: its
processor time since the last tick. If a hold has no known cause and the thread did not work, the line is useless to an
operator. Such a hold below a second is counted, but logged only at DEBUG.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop of the fastest available kind."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


log = logging.getLogger(__name__)

HELD_LONG = 0.05
"""If one step blocks the loop for longer than this time in seconds, the step is counted and logged."""
WAITED_LONG = 1.0
"""If the loop stands still without any work for longer than this time in seconds, a warning is logged.

The thread then waited for a processor or a disk.
"""
_TICK = 0.1
_LINES_EACH = 1.0
"""The minimum number of seconds between two lines."""


class LoopWatch:
    """Counts and logs the steps that block the loop for a long time; `held` and `longest_ms` are for metrics."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name_of: Any) -> None:
        """Initialize; `name_of(frame)` returns the name of the request in a frame."""
        self._loop = loop
        self._name_of = name_of
        self._due = 0.0
        self._worked = 0.0  # the thread's processor time at the last tick
        self._tick: asyncio.TimerHandle | None = None
        self._logged = 0.0
        self._collecting = self._worked_before = 0.0
        self._unlogged = 0
        self.held = 0
        """The number of times that the loop was blocked for longer than HELD_LONG."""
        self.longest_ms = 0.0
        self.level = logging.WARNING
        """The level of the lines in the log."""

    def start(self) -> None:
        """Start watching."""
        gc.callbacks.append(self._collection)
        self._check_later()

    def _check_later(self) -> None:
        self._due = self._loop.time() + _TICK
        self._worked = time.thread_time()
        self._tick = self._loop.call_at(self._due, self._check)

    def close(self) -> None:
        """Stop watching."""
        if self._tick is not None:
            self._tick.cancel()
            gc.callbacks.remove(self._collection)

    def request(self, frame: memoryview, context: Any, seconds: float) -> None:
        """Count a request that blocked the loop in a single step."""
        self.work(self._name_of(frame), len(frame), context, seconds)

    def work(self, name: str, size: int, context: Any, seconds: float) -> None:
        """Count a step of a long request; log its API, its size in bytes, and the time for which it held the loop."""
        self._due = self._loop.time() + _TICK  # this step explains the late tick
        self._log(
            seconds, f"{name} of {size} bytes from {context.client_host[1:]}, client {context.client_id or 'unnamed'}"
        )

    def _check(self) -> None:
        late = self._loop.time() - self._due
        if late > HELD_LONG:
            only_waited = late < WAITED_LONG and time.thread_time() - self._worked < HELD_LONG
            self._log(late, "something that is no request", quietly=only_waited)
        self._check_later()

    def _collection(self, phase: str, _found: dict[str, int]) -> None:
        if phase == "start":
            self._collecting, self._worked_before = time.perf_counter(), time.thread_time()
            return
        took = time.perf_counter() - self._collecting
        if took > HELD_LONG:
            self._due += took
            self._log(took, "Python, collecting garbage", self._worked_before)  # any thread may run the collection

    def _log(self, seconds: float, cause: str, worked_before: float | None = None, *, quietly: bool = False) -> None:
        self.held += 1
        self.longest_ms = max(self.longest_ms, seconds * 1000)
        now = time.monotonic()
        if now - self._logged < _LINES_EACH and not quietly:
            self._unlogged += 1
            return
        worked = min(time.thread_time() - (self._worked if worked_before is None else worked_before), seconds)
        text = "the event loop was held for %d ms, at most %d ms of them on a processor, by %s%s"
        if quietly:
            log.debug(text, seconds * 1000, worked * 1000, cause, "")
            return
        more = f" (and {self._unlogged} times since the last line)" if self._unlogged else ""
        log.log(self.level, text, seconds * 1000, worked * 1000, cause, more)
        self._logged, self._unlogged = now, 0

"""Timers of the coordinators: many keys, one handle of the event loop.

Owns when a key goes off. Never knows what a key means. A deadline that moves later, as a member's session does with
every heartbeat, costs one dictionary write: the heap learns of it when the old deadline comes.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from kbroker.clock import Clock

Key = tuple[int, Any]


class Timers:
    """Calls `fire(key)` when a key's delay has passed on the clock's monotonic time."""

    def __init__(self, clock: Clock, fire: Callable[[Key], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._deadlines: dict[Key, float] = {}
        self._queued: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._running = False

    def schedule(self, key: Key, delay_ms: float) -> None:
        """Let `key` go off in `delay_ms`, instead of any earlier arrangement."""
        deadline = self._clock.monotonic_ms() + delay_ms
        self._deadlines[key] = deadline
        if self._queued.get(key, float("inf")) > deadline:
            self._queued[key] = deadline
            heapq.heappush(self._heap, (deadline, next(self._order), key))
            if deadline < self._armed_for and not self._running:
                self._arm()

    def cancel(self, key: Key) -> None:
        """Forget `key`."""
        self._deadlines.pop(key, None)

    def forget(self, matches: Callable[[Key], bool]) -> None:
        """Forget all keys that match."""
        for key in [key for key in self._deadlines if matches(key)]:
            del self._deadlines[key]

    def run(self) -> None:
        """Fire what is due, in order of deadline."""
        if self._running:
            return
        self._running = True
        try:
            heap, now = self._heap, self._clock.monotonic_ms()
            while heap and heap[0][0] <= now:
                queued, _, key = heapq.heappop(heap)
                if self._queued.get(key) != queued:
                    continue
                del self._queued[key]
                deadline = self._deadlines.get(key)
                if deadline is None:
                    continue
                if deadline > queued:
                    self._queued[key] = deadline
                    heapq.heappush(heap, (deadline, next(self._order), key))
                    continue
                del self._deadlines[key]
                self._fire(key)
        finally:
            self._running = False
        self._arm()

    def close(self) -> None:
        """Forget everything."""
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = float("inf")

    def _arm(self) -> None:
        """Ask the loop to call `run` at the first deadline. Without a loop, somebody calls `run` by hand."""
        self._disarm()
        if not self._heap:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        deadline = self._heap[0][0]
        self._armed_for = deadline
        delay = max(0.0, deadline - self._clock.monotonic_ms()) / 1000
        self._handle = loop.call_later(delay, self._on_handle)

    def _on_handle(self) -> None:
        self._handle = None
        self._armed_for = float("inf")
        self.run()

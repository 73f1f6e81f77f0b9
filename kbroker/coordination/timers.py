"""Timers of the coordinators: many keys, one handle of the event loop.

Owns the times at which keys expire, and the retry of a key whose handler raised. Also owns the limit on the time that
all keys together may use in one turn of the event loop. Never knows the meaning of a key. Every heartbeat moves the
deadline of a member's session to a later time. This costs one dictionary write, because the heap is only updated at the
old deadline.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Any

from kbroker.clock import Clock

log = logging.getLogger(__name__)

Key = tuple[int, Any]
RETRY_MS, RETRY_MAX_MS = 500, 60_000
"""The first and the maximum pause before a failed key expires again, in ms (CoordinatorTimerImpl: 500 ms).

The pause is doubled after each failure.
"""

TURN_MS = 2
"""The maximum time in ms for expiring keys in one turn of the event loop.

The remaining keys expire in the next turn, the oldest first.
"""


class Timers:
    """Calls `fire(key)` when a key's delay has passed on the clock's monotonic time."""

    def __init__(self, clock: Clock, fire: Callable[[Key], None], name: str = "") -> None:
        self._clock = clock
        self._name = name
        self._failures: dict[Key, int] = {}
        self._fire = fire
        self._deadlines: dict[Key, float] = {}
        self._queued: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._order = itertools.count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self.first = float("inf")
        """The time of the monotonic clock before which no key is due.

        Keys with a delay of 0 (continued work) do not count.
        """
        self._ongoing: set[Key] = set()
        self._running = False

    def schedule(self, key: Key, delay_ms: float) -> None:
        """Let `key` expire after `delay_ms`. This replaces the key's previous deadline."""
        deadline = self._clock.monotonic_ms() + delay_ms
        self._deadlines[key] = deadline
        if delay_ms <= 0:
            self._ongoing.add(key)
        elif deadline < self.first:
            self.first = deadline
        if self._queued.get(key, float("inf")) > deadline:
            self._queued[key] = deadline
            heapq.heappush(self._heap, (deadline, next(self._order), key))
            if deadline < self._armed_for and not self._running:
                self._arm()

    def cancel(self, key: Key) -> None:
        self._deadlines.pop(key, None)
        if self._failures:
            self._failures.pop(key, None)

    def forget(self, matches: Callable[[Key], bool]) -> None:
        for known in (self._deadlines, self._failures):
            for key in [key for key in known if matches(key)]:
                del known[key]

    def run(self) -> None:
        """Fire the keys that are due, in order of deadline, for at most TURN_MS by the clock."""
        if self._running:
            return
        self._running = True
        try:
            heap, now = self._heap, self._clock.monotonic_ms()
            while heap and heap[0][0] <= now:
                self._take_first()
                if self._clock.monotonic_ms() >= now + TURN_MS:
                    break
        finally:
            self._running = False
        self._arm()

    def _take_first(self) -> None:
        """Fire the first key of the heap, if it was neither cancelled nor moved."""
        queued, _, key = heapq.heappop(self._heap)
        if self._queued.get(key) != queued:
            return
        del self._queued[key]
        deadline = self._deadlines.get(key)
        if deadline is None:
            return
        if deadline > queued:
            self._queued[key] = deadline
            heapq.heappush(self._heap, (deadline, next(self._order), key))
            return
        del self._deadlines[key]
        if self._ongoing:
            self._ongoing.discard(key)
        self._go_off(key)

    def _go_off(self, key: Key) -> None:
        try:
            self._fire(key)
        except Exception:
            failures = self._failures[key] = self._failures.get(key, -1) + 1
            delay_ms = min(RETRY_MS << min(failures, 10), RETRY_MAX_MS)
            log.exception("%s %d: timer %r failed, it fires again in %d ms", self._name, *key, delay_ms)
            if key not in self._deadlines:
                self.schedule(key, delay_ms)
        else:
            if self._failures:
                self._failures.pop(key, None)

    def close(self) -> None:
        self._deadlines.clear()
        self._failures.clear()
        self._queued.clear()
        self._heap.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = self.first = float("inf")

    def _arm(self) -> None:
        """Let the event loop call `run` at the first deadline. Without a loop, callers have to call `run`."""
        self._disarm()
        if not self._heap:
            return
        deadline, _, key = self._heap[0]
        if key not in self._ongoing:
            self.first = deadline
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._armed_for = deadline
        delay = max(0.0, deadline - self._clock.monotonic_ms()) / 1000
        self._handle = loop.call_later(delay, self._on_handle)

    def _on_handle(self) -> None:
        self._handle = None
        self._armed_for = float("inf")
        self.run()

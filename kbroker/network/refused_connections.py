"""Tells of connections that are refused: the first at once, many as one line a second.

Owns how often the log hears of it. Never refuses anything.
"""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""Seconds between two lines for the same reason."""


class Refusals:
    """Reasons are few: they name what an operator may change."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def tell(self, peer: str, reason: str) -> None:
        """Hear of one more."""
        if reason in self._timers:
            self._counts[reason] = self._counts.get(reason, 0) + 1
        else:
            log.info("refusing a connection from %s: %s", peer, reason)
            self._wait(reason)

    def close(self) -> None:
        """Tell what has not been told."""
        for reason, timer in list(self._timers.items()):
            timer.cancel()
            self._sum_up(reason)
        self._timers.clear()

    def _wait(self, reason: str) -> None:
        self._timers[reason] = self._loop.call_later(_PAUSE, self._is_over, reason)

    def _is_over(self, reason: str) -> None:
        if self._sum_up(reason):
            self._wait(reason)
        else:
            del self._timers[reason]

    def _sum_up(self, reason: str) -> bool:
        count = self._counts.pop(reason, 0)
        if count:
            log.info("refused %d more connections: %s", count, reason)
        return bool(count)

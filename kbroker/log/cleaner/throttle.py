"""How a compaction is slowed down: `log.cleaner.io.max.bytes.per.second`.

Owns the arithmetic. Never sleeps: the worker does.
"""

from __future__ import annotations

UNLIMITED = float("inf")


class Throttle:
    """How long to wait so that no more than `rate` bytes per second are spent; seconds of a clock that is passed in."""

    __slots__ = ("_due", "_rate")

    def __init__(self, rate: float = UNLIMITED) -> None:
        self.change(rate)

    def change(self, rate: float) -> None:
        """Use another rate from now on; nothing is owed any more."""
        self._rate = rate
        self._due = 0.0  # when all that was spent so far has had its time

    def spend(self, size: int, now: float) -> float:
        """Count `size` bytes; returns how many seconds to wait."""
        self._due = max(self._due, now) + size / self._rate
        return self._due - now

"""The clock of all parts of a broker. It is an interface, so that tests and embedders can advance the time.

Owns the meaning of the two clocks, and the real clock. Never sleeps.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time for stored timestamps, monotonic time for waiting; both are in ms."""

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch."""

    def monotonic_ms(self) -> float:
        """Return the time, in milliseconds, of a clock that never goes back."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000

"""A clock that a test moves: the machine's time plus an offset.

Owns the offset. Never sleeps: it calls `moved`, and the clock's creator then runs the timers that are due.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Final

from kbroker.clock import SystemClock
from kbroker.testing.numbers import check_number

_LAST_MS: Final = 253_370_764_800_000
"""The beginning of the year 9999, in ms. Later timestamps in stored data could not be shown as dates."""


class SteeredClock(SystemClock):
    """Shows the machine's time until a test moves the clock. The time then continues from the new moment."""

    def __init__(self) -> None:
        self._wall_ms = 0
        self._monotonic_ms = 0
        self.moved: Callable[[float], None] | None = None
        """A function that is called with the elapsed ms after each move.

        That function returns when all due work is done.
        """
        self.turn: Callable[[], AbstractContextManager[None]] = nullcontext
        """Returns a context manager for a move: it excludes all other moves at the same time."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.now():%Y-%m-%d %H:%M:%S} UTC, {timedelta(milliseconds=self.ahead_ms)} ahead>"
        )

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._wall_ms

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000 + self._monotonic_ms

    def advance(
        self,
        by: timedelta = timedelta(),
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        ms: float = 0,
    ) -> None:
        """Advance the time by the sum of the arguments: sessions and transactions expire, retention runs.

        Returns when all due work is done; work that takes long has at least begun. Raises ValueError for a negative sum
        (use `set`), and for a time after the year 9998. Raises TypeError for a number without a unit.
        """
        if not isinstance(by, timedelta):
            raise TypeError(f"advance({by!r}) has no unit: advance(seconds={by!r}), or a timedelta")
        given = {"days": days, "hours": hours, "minutes": minutes, "seconds": seconds, "ms": ms}
        for name, value in given.items():
            check_number(name, value, least=None)
        step = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + ms
        step += by / timedelta(milliseconds=1)
        if step < 0:
            raise ValueError("time does not go back by advance(); set() moves the wall clock")
        with self.turn():
            self._move(round(step), round(step))

    def set(self, when: datetime | float) -> None:
        """Set the time, given as a datetime or in seconds since the epoch.

        An earlier time moves only the wall clock; timers keep their remaining time. Raises ValueError for a time before
        1970 or after the year 9998.
        """
        moment = when.timestamp() if isinstance(when, datetime) else when
        check_number("the time", moment, least=None)
        with self.turn():
            step = round(moment * 1000) - self.now_ms()
            self._move(step, max(step, 0))

    @property
    def ahead_ms(self) -> int:
        """The number of ms by which the clock is ahead of the machine's time."""
        return self._wall_ms

    def reset(self, ahead_ms: int = 0) -> None:
        """Show the machine's time plus `ahead_ms`. Timers continue unchanged."""
        self._wall_ms = ahead_ms

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def _move(self, wall_ms: int, monotonic_ms: int) -> None:
        if not 0 <= self.now_ms() + wall_ms < _LAST_MS:
            raise ValueError("the time must lie between 1970 and 9998")
        self._wall_ms += wall_ms
        self._monotonic_ms += monotonic_ms
        if self.moved is not None:
            self.moved(monotonic_ms)

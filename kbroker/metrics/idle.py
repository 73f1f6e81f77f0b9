"""The share of time in which the event loop is idle.

Owns the samples of the loop's processor time, taken when metrics are requested. Kafka reports it for its thread pools
as the mean of a minute; here one thread does the work of both, and other work of the process does not count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

_LONG_S: Final = 60.0
_SHORT_S: Final = 0.5
_MOST: Final = 128


class Idle:
    """The idle share of one loop; used in its thread. After a long time without requests it covers all that time."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._now = now
        self._worked = worked
        self._seen: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def share(self) -> float:
        """Return the thread's idle share of the last minute, or of the known part of it: 0 to 1."""
        now, worked = self._now(), self._worked()
        while len(self._seen) > 1 and now - self._seen[1][0] >= _LONG_S:
            self._seen.popleft()
        before, before_worked = self._seen[0] if self._seen else (now, worked)
        if not self._seen or now - self._seen[-1][0] >= _SHORT_S:
            self._seen.append((now, worked))
        passed = now - before
        return 1.0 if passed < _SHORT_S else min(max(1 - (worked - before_worked) / passed, 0.0), 1.0)

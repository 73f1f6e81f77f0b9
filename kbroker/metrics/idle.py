"""How much of its time the event loop has nothing to do.

Owns what was seen of the loop's processor time when metrics were asked for. Kafka tells it of its pools of threads as
the mean of a minute; here one thread does the work of both, and what else runs in the process is not counted.
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
    """Of one loop; asked in its thread. Where it was not asked for long, it speaks of all the time since."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._now = now
        self._worked = worked
        self._seen: deque[tuple[float, float]] = deque(maxlen=_MOST)

    def share(self) -> float:
        """Return the share of the last minute, or of what is known of it, in which the thread did not work: 0 to 1."""
        now, worked = self._now(), self._worked()
        while len(self._seen) > 1 and now - self._seen[1][0] >= _LONG_S:
            self._seen.popleft()
        before, before_worked = self._seen[0] if self._seen else (now, worked)
        if not self._seen or now - self._seen[-1][0] >= _SHORT_S:
            self._seen.append((now, worked))
        passed = now - before
        return 1.0 if passed < _SHORT_S else min(max(1 - (worked - before_worked) / passed, 0.0), 1.0)

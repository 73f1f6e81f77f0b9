"""How long a login on a connection holds, and when the client may, or does, log in anew (KIP-368).

Owns the end of a session and the least time between two logins, and when a broker that has logged in to another one
does so again. Never knows who logs in, or by which mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

LEAST_MS_BETWEEN: Final = 1000
"""A client that authenticates again sooner than that is refused."""
_SHARE_OF_SESSION: Final = 0.85
"""Of a session's time, after which a broker logs in to another one again."""
_LONGEST_MS: Final = (1 << 63) - 1


def log_in_again_after_s(lifetime_ms: int) -> float:
    """Return after how many seconds to log in anew, where the other side says how long the session is; 0: for ever."""
    return lifetime_ms / 1000 * _SHARE_OF_SESSION if lifetime_ms > 0 else math.inf


class Session:
    """One connection's. `monotonic_ms` is the clock of sessions."""

    __slots__ = ("_monotonic_ms", "_renewed_ms", "ends_ms")

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._renewed_ms: float | None = None
        self.ends_ms: float | None = None
        """When it is over, by that clock; None: it never is."""

    def begin(self, left_ms: int | None, longest_ms: int) -> int:
        """Begin with what is left of the credential, None for no end, and the most that is configured, 0 for no limit.

        Returns how long it lasts in ms, 0 where it has no end, or is over at once.
        """
        limits = [] if left_ms is None else [left_ms]
        if longest_ms > 0:
            limits.append(longest_ms)
        if not limits:
            self.ends_ms = None
            return 0
        lifetime_ms = min(max(min(limits), 0), _LONGEST_MS)
        self.ends_ms = self._monotonic_ms() + lifetime_ms
        return lifetime_ms

    def may_be_renewed(self) -> bool:
        """Tell whether the client may authenticate again now, and remember that it did."""
        now = self._monotonic_ms()
        if self.ends_ms is None or (self._renewed_ms is not None and now - self._renewed_ms < LEAST_MS_BETWEEN):
            return False
        self._renewed_ms = now
        return True

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ends_ms is not None and self._monotonic_ms() > self.ends_ms

"""The duration of a login on a connection, and when the client may, or does, log in again (KIP-368).

Owns the end of a session and the least time between two logins, and when a broker renews its login to another one.
Never knows the client or the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

LEAST_MS_BETWEEN: Final = 1000
"""A client that authenticates again earlier is refused."""
_SHARE_OF_SESSION: Final = 0.85
"""The share of a session's time after which a broker renews its login to another one."""
_LONGEST_MS: Final = (1 << 63) - 1


def log_in_again_after_s(lifetime_ms: int) -> float:
    """Return the seconds until the next login, from the session's lifetime; 0 for an endless session."""
    return lifetime_ms / 1000 * _SHARE_OF_SESSION if lifetime_ms > 0 else math.inf


class Session:
    """The session of one connection. `monotonic_ms` is the clock of sessions."""

    __slots__ = ("_monotonic_ms", "_renewed_ms", "ends_ms")

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._renewed_ms: float | None = None
        self.ends_ms: float | None = None
        """Its end, by that clock; None for no end."""

    def begin(self, left_ms: int | None, longest_ms: int) -> int:
        """Begin with the credential's remaining time, None for no end, and the configured maximum, 0 for no limit.

        Returns its lifetime in ms, 0 if it has no end, or is over at once.
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
        """Whether the client may authenticate again now; if so, the time is recorded."""
        now = self._monotonic_ms()
        if self.ends_ms is None or (self._renewed_ms is not None and now - self._renewed_ms < LEAST_MS_BETWEEN):
            return False
        self._renewed_ms = now
        return True

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.ends_ms is not None and self._monotonic_ms() > self.ends_ms

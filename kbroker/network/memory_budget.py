"""The memory that all connections together may hold: received bytes that wait, and responses that are not sent yet.

Owns the sum, the queue of connections that wait for room, and the choice of connections to close if no memory becomes
free. Never reads or sends.

`queued.max.request.bytes` is the limit. If it is -1, Kafka's default, the limit is DEFAULT_LIMIT: it also covers
responses here, and clients must not fill up a broker's memory. Small requests in progress are not counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 100 * 1024 * 1024
PATIENCE = 10.0
"""If others wait, a connection that holds memory for the same request for so many seconds is closed."""
_CHECK_SECONDS = 1.0


class Holder(Protocol):
    """A connection that holds memory."""

    peer: str

    def go_on_reading(self) -> None:
        """Try again to get room."""

    def abort(self) -> None:
        """Close at once, and free its memory."""


class Memory:
    """The memory of the connections of one broker, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit if limit > 0 else DEFAULT_LIMIT
        self.used = 0
        self.tight = False
        """Whether more than half of the memory is used. If so, connections receive less at once."""
        self._held: dict[Holder, tuple[int, float]] = {}
        """How many bytes each connection holds, and since when; the oldest first."""
        self._waiting: dict[Holder, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def held_by(self, holder: Holder) -> int:
        """Return how many bytes a connection holds."""
        return self._held.get(holder, (0, 0.0))[0]

    def may_hold(self, holder: Holder, size: int) -> bool:
        """Return whether a connection may hold `size` bytes in all.

        The connection that has held memory for the longest time always may. Otherwise two connections could wait for
        each other's memory for ever.
        """
        if self.used - self.held_by(holder) + size <= self.limit:
            return True
        return next(iter(self._held), holder) is holder

    def hold(self, holder: Holder, size: int) -> None:
        """Record that a connection now holds `size` bytes in all."""
        before, since = self._held.get(holder, (0, 0.0))
        self.used += size - before
        self.tight = self.used * 2 > self.limit
        if size:
            self._held[holder] = (size, since or time.monotonic())
        elif before:
            del self._held[holder]
        if size < before:
            self._offer()
        elif self.used > self.limit:
            self._check_soon()

    def restart_time(self, holder: Holder) -> None:
        """Record that a connection has finished a request, which restarts its time."""
        held = self._held.pop(holder, None)
        if held is not None:
            self._held[holder] = (held[0], time.monotonic())

    def wait(self, holder: Holder) -> None:
        """Call a connection's `go_on_reading` once there may be room."""
        self._waiting[holder] = None
        self._check_soon()

    def forget(self, holder: Holder) -> None:
        """Remove a closed connection."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _offer(self) -> None:
        """Let waiting connections retry: first the one that always may, then the others in order until one fails."""
        waiting = self._waiting
        oldest = next(iter(self._held), None)
        if oldest is not None and oldest in waiting:
            del waiting[oldest]
            oldest.go_on_reading()
        while waiting and self.used < self.limit:
            first = next(iter(waiting))
            del waiting[first]
            first.go_on_reading()
            if first in waiting:
                break

    def _check_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._relieve)

    def _relieve(self) -> None:
        """Close the longest holders of memory, while others wait for it or the sum is over the limit."""
        self._timer = None
        longest = time.monotonic() - PATIENCE
        for holder, (size, since) in list(self._held.items()):
            if not (self._waiting or self.used > self.limit) or (since > longest and self.used < 2 * self.limit):
                break
            log.warning("closing the connection from %s: it holds %d bytes that others wait for", holder.peer, size)
            holder.abort()
        if self._waiting or self.used > self.limit:
            self._check_soon()

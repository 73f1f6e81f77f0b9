"""The memory that all connections together may use: received bytes that wait, and responses that are not sent yet.

Owns the sum, the queue of connections that wait for memory, and the choice of connections to close if no memory is
freed. Never reads or sends.

`queued.max.request.bytes` is the limit. If it is -1, Kafka's default, the limit is DEFAULT_LIMIT. A limit is needed
because clients must not use up a broker's memory. The limit also covers responses. Small requests in progress are not
counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 100 * 1024 * 1024
PATIENCE = 10.0
"""The time limit in seconds for the use of memory by one request.

After this time, the connection is closed if other connections wait for memory.
"""
_CHECK_SECONDS = 1.0


class Holder(Protocol):
    """A connection that uses memory."""

    peer: str

    def go_on_reading(self) -> None:
        """Retry to reserve memory."""

    def abort(self) -> None:
        """Close the connection immediately and free its memory."""


class Memory:
    """The memory of the connections of one broker, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit if limit > 0 else DEFAULT_LIMIT
        self.used = 0
        self.tight = False
        """Whether more than half of the memory is used. If so, connections receive fewer bytes in one call."""
        self._held: dict[Holder, tuple[int, float]] = {}
        """The number of bytes that each connection uses, and the start time; the oldest connection first."""
        self._waiting: dict[Holder, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def held_by(self, holder: Holder) -> int:
        """Return the number of bytes that a connection uses."""
        return self._held.get(holder, (0, 0.0))[0]

    def may_hold(self, holder: Holder, size: int) -> bool:
        """Return whether a connection may use `size` bytes in total.

        Always return True for the connection that has used memory for the longest time. Otherwise two connections could
        wait for each other's memory forever.
        """
        if self.used - self.held_by(holder) + size <= self.limit:
            return True
        return next(iter(self._held), holder) is holder

    def hold(self, holder: Holder, size: int) -> None:
        """Record that a connection now uses `size` bytes in total."""
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
        """Record that a connection has finished a request; the connection's time limit begins again."""
        held = self._held.pop(holder, None)
        if held is not None:
            self._held[holder] = (held[0], time.monotonic())

    def wait(self, holder: Holder) -> None:
        """Call a connection's `go_on_reading` when memory may be free."""
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
        """Let waiting connections retry: first the oldest user of memory, then the others until a retry fails."""
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
        """Close connections, the longest user of memory first.

        Continue while other connections wait for memory, or the sum exceeds the limit.
        """
        self._timer = None
        longest = time.monotonic() - PATIENCE
        for holder, (size, since) in list(self._held.items()):
            if not (self._waiting or self.used > self.limit) or (since > longest and self.used < 2 * self.limit):
                break
            log.warning("closing the connection from %s: it holds %d bytes that others wait for", holder.peer, size)
            holder.abort()
        if self._waiting or self.used > self.limit:
            self._check_soon()

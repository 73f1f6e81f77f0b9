"""How much memory all connections together may hold: what was received and waits, and answers that nobody takes.

Owns the sum, the queue of those that wait for room, and the choice of who has to go when it does not come free. Never
reads or sends.

`queued.max.request.bytes` is the limit; where it is not set (Kafka's -1) it is DEFAULT_LIMIT, since here it holds for
answers too and a broker must not be filled up by clients. What small requests take on their way is not counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

log = logging.getLogger(__name__)

DEFAULT_LIMIT = 100 * 1024 * 1024
PATIENCE = 10.0
"""Seconds after which a connection that holds memory for one and the same request is closed, if others wait."""
_LOOK = 1.0


class Holder(Protocol):
    """A connection that holds memory."""

    peer: str

    def go_on_reading(self) -> None:
        """There may be room now."""

    def abort(self) -> None:
        """End at once, and hold nothing any more."""


class Memory:
    """What the connections of one broker hold, in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit if limit > 0 else DEFAULT_LIMIT
        self.used = 0
        self.tight = False
        """Whether more than half is taken: then connections take in less at once."""
        self._held: dict[Holder, tuple[int, float]] = {}
        """Bytes, and since when; oldest first."""
        self._waiting: dict[Holder, None] = {}
        self._look: asyncio.TimerHandle | None = None

    def held_by(self, holder: Holder) -> int:
        """Return how many bytes a connection holds."""
        return self._held.get(holder, (0, 0.0))[0]

    def may_hold(self, holder: Holder, size: int) -> bool:
        """Tell whether a connection may hold `size` bytes in all.

        The one that has held some for longest may always: or two that each wait for the other's would wait for ever.
        """
        if self.used - self.held_by(holder) + size <= self.limit:
            return True
        return next(iter(self._held), holder) is holder

    def hold(self, holder: Holder, size: int) -> None:
        """Note that a connection holds `size` bytes in all now."""
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
            self._look_soon()

    def starts_anew(self, holder: Holder) -> None:
        """Note that a connection has come to an end with a request: its time begins again."""
        held = self._held.pop(holder, None)
        if held is not None:
            self._held[holder] = (held[0], time.monotonic())

    def wait(self, holder: Holder) -> None:
        """Let a connection know, by `go_on_reading`, when there may be room."""
        self._waiting[holder] = None
        self._look_soon()

    def forget(self, holder: Holder) -> None:
        """A connection is gone."""
        self._waiting.pop(holder, None)
        self.hold(holder, 0)

    def close(self) -> None:
        """Look after nothing any more."""
        if self._look is not None:
            self._look.cancel()

    def _offer(self) -> None:
        """Let those that wait ask again: the one that may always have more, then in order, until one gets nothing."""
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

    def _look_soon(self) -> None:
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK, self._relieve)

    def _relieve(self) -> None:
        """Close who has held memory for longest, while others wait for it or it is over the limit."""
        self._look = None
        longest = time.monotonic() - PATIENCE
        for holder, (size, since) in list(self._held.items()):
            if not (self._waiting or self.used > self.limit) or (since > longest and self.used < 2 * self.limit):
                break
            log.warning("closing the connection from %s: it holds %d bytes that others wait for", holder.peer, size)
            holder.abort()
        if self._waiting or self.used > self.limit:
            self._look_soon()

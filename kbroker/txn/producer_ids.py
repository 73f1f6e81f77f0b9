"""Producer ids, supplied from blocks that the controller reserves for ever (KIP-730).

Owns the current block, and the next one, which is reserved when half of this one is used: the reservation is on disk
before it is needed, so nobody waits for it. Never reuses an id: the rest of a block is lost with a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kbroker.log.producers.producer_state import CREDIBLE_IDS

BLOCK = 1000


class ProducerIds:
    """One broker's supply.

    `reserve(count)` returns the first id of a new block; `skip(least)` prevents later blocks below `least`, for ever;
    `settle()` returns when the reservation is durable.
    """

    def __init__(
        self, reserve: Callable[[int], int], skip: Callable[[int], None], settle: Callable[[], None] = lambda: None
    ) -> None:
        self._reserve = reserve
        self._skip = skip
        self._settle = settle
        self._spare = -1  # the first id of the next block
        self._next = 0
        self._end = 0

    def avoid(self, used: int) -> None:
        """Never supply an id up to `used`: a log contains it, which another broker may have written."""
        if used >= CREDIBLE_IDS:
            return  # or the ids would soon be exhausted
        if used >= self._end:
            self._skip(used + 1)
            self._spare = -1
        self._next = min(max(self._next, used + 1), self._end)

    def next(self) -> int:
        """Return an id that no producer has had."""
        if self._next == self._end:
            first = self._spare if self._spare >= 0 else self._reserve(BLOCK)
            self._settle()
            self._next, self._end, self._spare = first, first + BLOCK, -1
        self._next += 1
        if self._end - self._next == BLOCK // 2:
            self._reserve_ahead()
        return self._next - 1

    def _reserve_ahead(self) -> None:
        with suppress(OSError):  # it is retried when needed
            self._spare = self._reserve(BLOCK)

"""Places for work that holds memory while it waits for a broker.

Owns the order: who waits for a broker's place waits without one of all places, so that a broker that does not answer
holds up only what is for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Places:
    """`most` places, of which one broker has at most `each`."""

    def __init__(self, most: int, each: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._of: dict[Hashable, asyncio.Semaphore] = {}
        self._users: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Number of brokers for which somebody has, or awaits, a place."""
        return len(self._of)

    @asynccontextmanager
    async def place(self, broker: Hashable) -> AsyncIterator[None]:
        """Hold a place for work with a broker."""
        own = self._of.setdefault(broker, asyncio.Semaphore(self._each))
        self._users[broker] = self._users.get(broker, 0) + 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users[broker] -= 1
            if not self._users[broker]:
                del self._users[broker], self._of[broker]

"""Slots ("places") for work that uses memory while it waits for a broker.

Owns the order: work first waits for one of its broker's places, and then for one of the places of all brokers. So a
broker that does not answer delays only its own work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Places:
    """A limited number of places: `most` in total, and at most `each` for one broker."""

    def __init__(self, most: int, each: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._of: dict[Hashable, asyncio.Semaphore] = {}
        self._users: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Return the number of brokers for which any work has a place or waits for a place."""
        return len(self._of)

    @asynccontextmanager
    async def place(self, broker: Hashable) -> AsyncIterator[None]:
        """Wait for a place for work with a broker, and keep the place until the `with` block ends."""
        own = self._of.setdefault(broker, asyncio.Semaphore(self._each))
        self._users[broker] = self._users.get(broker, 0) + 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users[broker] -= 1
            if not self._users[broker]:
                del self._users[broker], self._of[broker]

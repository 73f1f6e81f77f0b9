"""Reads something in ZooKeeper again whenever it may have changed: one read at a time, and one more after it.

Owns the reading task, and that a new connection is a reason to read: watches are lost with the old one, even in the
same session. Never knows what is read; the reader sets the watch that calls `look`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from kbroker.controller.tree.znode import MetadataTree, Session, Unreachable

log = logging.getLogger(__name__)


class Rereading:
    """`read` reads everything that may have changed; after Unreachable it is repeated with the next connection."""

    def __init__(self, tree: MetadataTree, read: Callable[[], Awaitable[None]], what: str) -> None:
        """`what` is its name in the log."""
        self._tree = tree
        self._read = read
        self._what = what
        self._reading: asyncio.Task[None] | None = None
        self._again = self._closed = False

    def begin(self, connected: Callable[[], None] | None = None) -> None:
        """Read now, and with every new connection: `connected` is called then, by default `look`."""
        again = connected or self.look
        self._tree.listen(lambda what: again() if what is Session.LIVE else None)
        self.look()

    def look(self) -> None:
        """Read again now, or after the running read."""
        if self._closed:
            return
        if self._reading is not None:
            self._again = True
            return
        self._reading = asyncio.get_running_loop().create_task(self._follow())

    async def settled(self) -> None:
        """Wait for the end of the running read, if any."""
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()

    async def _follow(self) -> None:
        try:
            while True:
                self._again = False
                with contextlib.suppress(Unreachable):  # repeated when ZooKeeper is back, if it is not by now
                    await self._read()
                if not self._again:
                    break
        except Exception:
            log.exception("%s is not followed until it changes again", self._what)
        finally:
            self._reading = None

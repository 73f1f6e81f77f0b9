"""Brings the metadata journal to the disk on a thread, while the event loop serves.

Owns which changes are on disk, and who waits for them. Never writes to the journal: what is asked for has been written
to the file. One sync is under way at a time, and covers all that was written before it began, so that many changes in a
row cost few of them.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial


class JournalSync:
    """One thread. `failed` hears of an error, after which nothing may be written any more: what is on disk is unknown.

    Its methods are for the event loop's thread.
    """

    __slots__ = (
        "_asked",
        "_asked_size",
        "_done",
        "_done_size",
        "_emptied",
        "_error",
        "_failed",
        "_fd",
        "_loop",
        "_pool",
        "_running",
        "_waiting",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, size: int, failed: Callable[[OSError], None]) -> None:
        """Begin with a journal of `size` bytes that are on disk."""
        self._loop = loop
        self._fd = fd
        self._failed = failed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-journal")
        self._asked, self._asked_size = 0, size
        self._done, self._done_size = 0, size
        self._emptied = 0  # what had been asked for when the journal was last emptied
        self._running: Future[None] | None = None
        self._error: OSError | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def check(self) -> None:
        """Raise the OSError of a sync that failed."""
        if self._error is not None:
            raise OSError(self._error.errno, f"the metadata journal: {self._error.strerror}")

    def size_on_disk(self, size: int) -> int:
        """Return how much of the journal, which has `size` bytes, is known to be on disk."""
        return size if self._done == self._asked else self._done_size

    def emptied(self) -> None:
        """Hear that all that was written is on disk in another file, and the journal empty."""
        self._emptied = self._asked
        self._reached(self._asked, 0)
        self._done_size = 0

    def ask(self, size: int) -> None:
        """Have what has just been written brought to the disk; the journal has `size` bytes now."""
        self._asked += 1
        self._asked_size = size
        if self._running is None:
            self._begin()

    def waiting(self) -> asyncio.Future[None] | None:
        """Return what is done once all that was written is on disk, None if it is. Raises OSError, then or now."""
        self.check()
        if self._done == self._asked:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._asked, future))
        return future

    def settle(self) -> None:
        """Bring all that was written to the disk now; raises OSError."""
        self.check()
        if self._done < self._asked:
            try:
                self._sync_now()
            except OSError as error:
                self._error = error
                self._failed(error)
                raise
            self._reached(self._asked, self._asked_size)

    def close(self) -> None:
        """Bring what was written to the disk, and end the thread; raises OSError."""
        self._pool.shutdown()
        if self._error is None and self._done < self._asked:
            self._sync_now()
            self._reached(self._asked, self._asked_size)

    def _sync_now(self) -> None:
        # What the thread's sync did not take is lost, whatever a later one says: the kernel tells of it only once.
        if self._running is not None:
            self._running.result()
        os.fdatasync(self._fd)

    def _begin(self) -> None:
        tell = partial(self._tell, self._asked, self._asked_size)
        self._running = self._pool.submit(os.fdatasync, self._fd)
        self._running.add_done_callback(tell)

    def _tell(self, number: int, size: int, done: Future[None]) -> None:
        """Run by the thread. The loop may be gone by then, and with it whoever waited."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ended, number, size, done.exception())

    def _ended(self, number: int, size: int, error: BaseException | None) -> None:
        self._running = None
        if isinstance(error, OSError) and self._error is None:
            self._error = error
            self._failed(error)
        if self._error is not None:
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(OSError(self._error.errno, self._error.strerror))
            self._waiting.clear()
            return
        self._reached(number, size)
        if self._done < self._asked:
            self._begin()

    def _reached(self, number: int, size: int) -> None:
        if number > self._done:
            self._done = number
            if number > self._emptied:
                self._done_size = size
        while self._waiting and self._waiting[0][0] <= self._done:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

"""Syncs the metadata journal to disk on a thread, while the event loop serves requests.

Owns the record of the changes that are on disk, and the futures of waiting callers. Never writes to the journal: its
owner writes first, then requests a sync. One sync runs at a time, and covers all data written before it began, so that
many changes in a row need few syncs.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial


class JournalSync:
    """The thread that syncs.

    On an error the thread calls `failed`: the content on disk is unknown, and writing must stop. The methods must be
    called on the event loop's thread.
    """

    __slots__ = (
        "_asked",
        "_asked_size",
        "_before",
        "_done",
        "_done_size",
        "_error",
        "_failed",
        "_fd",
        "_pool",
        "_running",
        "_waiting",
        "loop",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, size: int, failed: Callable[[OSError], None]) -> None:
        """Begin with a journal whose `size` bytes are on disk."""
        self.loop = loop
        self._fd = fd
        self._before: Callable[[], object] | None = None
        self._failed = failed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-journal")
        self._asked, self._asked_size = 0, size
        self._done, self._done_size = 0, size
        self._running: Future[None] | None = None
        self._error: OSError | None = None
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def check(self) -> None:
        """Raise the OSError of a failed sync."""
        if self._error is not None:
            raise OSError(self._error.errno, f"the metadata journal: {self._error.strerror}")

    def size_on_disk(self, size: int) -> int:
        """Return the number of the journal's `size` bytes that are known to be on disk."""
        return size if self._done == self._asked else self._done_size

    def go_on_in(self, fd: int, before: Callable[[], object]) -> None:
        """Sync another file from now on.

        Before the first sync of this file, `before` syncs the data of the previous file.
        """
        self._fd, self._before = fd, before

    def forget_before(self) -> None:
        """Drop `before`: the data of the previous file is no longer needed."""
        self._before = None

    def run(self, work: Callable[[], object], then: Callable[[BaseException | None], object]) -> None:
        """Run other work on the thread after earlier work. Then call `then` on the event loop with the work's error."""

        def notify(done: Future[object]) -> None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(then, done.exception())

        self._pool.submit(work).add_done_callback(notify)

    def ask(self, size: int) -> None:
        """Request a sync of the latest write, after which the journal has `size` bytes."""
        self._asked += 1
        self._asked_size = size
        if self._running is None:
            self._begin()

    def waiting(self) -> asyncio.Future[None] | None:
        """Return a future that is done when all writes are on disk; None if they already are.

        Raises OSError, or sets it on the future.
        """
        self.check()
        if self._done == self._asked:
            return None
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append((self._asked, future))
        return future

    def settle(self) -> None:
        """Sync all writes now. Raises OSError."""
        self.check()
        if self._done < self._asked:
            try:
                self._sync_now()
            except OSError as error:
                self._error = error
                self._failed(error)
                raise
            self._reached(self._asked, self._asked_size)

    def fail(self, error: OSError) -> None:
        """Handle the failure of a sync that the caller ran itself. The kernel reports the failure only once."""
        if self._error is None:
            self._error = error
            self._failed(error)

    def close(self) -> None:
        """Sync all writes, and end the thread. Raises OSError."""
        self._pool.shutdown()
        if self._error is None and self._done < self._asked:
            self._sync_now()
            self._reached(self._asked, self._asked_size)

    def _sync_now(self) -> None:
        # Data that the thread failed to sync is lost, even if a later sync succeeds: the kernel reports a failure only
        # once.
        if self._running is not None:
            self._running.result()
        if self._before is not None:
            self._before()
            self._before = None
        os.fdatasync(self._fd)

    def _begin(self) -> None:
        notify = partial(self._notify, self._asked, self._asked_size, self._before)
        if self._before is None:
            self._running = self._pool.submit(os.fdatasync, self._fd)
        else:
            self._running = self._pool.submit(_one_after_the_other, self._before, self._fd)
        self._running.add_done_callback(notify)

    def _notify(self, number: int, size: int, before: object, done: Future[None]) -> None:
        """Notify the event loop, from the thread. The loop may be closed by then."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._ended, number, size, before, done.exception())

    def _ended(self, number: int, size: int, before: object, error: BaseException | None) -> None:
        self._running = None
        if error is None and self._before is before:
            self._before = None
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
            self._done, self._done_size = number, size
        while self._waiting and self._waiting[0][0] <= self._done:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_result(None)


def _one_after_the_other(before: Callable[[], object], fd: int) -> None:
    before()
    os.fdatasync(fd)

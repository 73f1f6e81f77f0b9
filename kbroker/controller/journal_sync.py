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
        """Begin with a journal of `size` bytes that are on disk."""
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
        """Raise the OSError of a sync that failed."""
        if self._error is not None:
            raise OSError(self._error.errno, f"the metadata journal: {self._error.strerror}")

    def size_on_disk(self, size: int) -> int:
        """Return how much of the journal, which has `size` bytes, is known to be on disk."""
        return size if self._done == self._asked else self._done_size

    def go_on_in(self, fd: int, before: Callable[[], object]) -> None:
        """Bring another file to the disk from now on, and not before `before` has brought what came earlier."""
        self._fd, self._before = fd, before

    def forget_before(self) -> None:
        """Hear that what came before the file is not needed any more."""
        self._before = None

    def run(self, work: Callable[[], object], then: Callable[[BaseException | None], object]) -> None:
        """Do something else on the thread, in turn; `then` hears of its end on the loop, with its error."""

        def tell(done: Future[object]) -> None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(then, done.exception())

        self._pool.submit(work).add_done_callback(tell)

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
        future: asyncio.Future[None] = self.loop.create_future()
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

    def fail(self, error: OSError) -> None:
        """Hear that another sync of the file has failed: the kernel tells of it only once."""
        if self._error is None:
            self._error = error
            self._failed(error)

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
        if self._before is not None:
            self._before()
            self._before = None
        os.fdatasync(self._fd)

    def _begin(self) -> None:
        tell = partial(self._tell, self._asked, self._asked_size, self._before)
        if self._before is None:
            self._running = self._pool.submit(os.fdatasync, self._fd)
        else:
            self._running = self._pool.submit(_one_after_the_other, self._before, self._fd)
        self._running.add_done_callback(tell)

    def _tell(self, number: int, size: int, before: object, done: Future[None]) -> None:
        """Run by the thread. The loop may be gone by then, and with it whoever waited."""
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

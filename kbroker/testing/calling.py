"""Calls to the broker's loop from another thread, which waits for the result.

Owns the waiting: abandoned work never begins, running work is cancelled, and waiting threads are woken when the broker
stops. Knows nothing about the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

Result = TypeVar("Result")
PATIENCE_S = 10.0
_ENDING_S = 5.0
_OWN_THREAD = "this cannot be requested in the broker's own thread, which would have to answer"
NOT_RUNNING = "the broker does not run any more"


class Calling:
    """Lets other threads call functions in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self._thread = thread
        self._lock = threading.Lock()
        self._waited: set[Future[Any]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_alive(self) -> bool:
        """Whether the loop's thread runs."""
        return self._thread.is_alive()

    def check_alive(self) -> None:
        """Raise RuntimeError if the broker has stopped."""
        if not self.is_alive:
            raise RuntimeError(NOT_RUNNING)

    def check_thread(self) -> None:
        """Raise RuntimeError if the caller is the broker's own thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(_OWN_THREAD)

    def call(self, work: Callable[[], Result]) -> Result:
        """Run a function in the broker's thread; return its result. Raises RuntimeError if the broker has stopped."""
        if threading.current_thread() is self._thread:
            return work()

        async def done() -> Result:
            return work()

        return self.wait_for(done())

    def wait_for(self, work: Coroutine[Any, Any, Result], patience_s: float = PATIENCE_S) -> Result:
        """Run a coroutine on the broker's loop and return its result.

        Raises RuntimeError if the broker has stopped, or if the caller is the broker's own thread (for instance a
        fault's `where` function).
        """
        given_up = threading.Event()
        begun = self._unless(given_up, work)
        try:
            self.check_thread()
            self.check_alive()
            with self._lock:  # the lock lets `ended` find the future; if the loop is closed, the next call fails
                future = asyncio.run_coroutine_threadsafe(begun, self._loop)
                self._waited.add(future)
        except BaseException:
            begun.close()
            work.close()  # otherwise Python warns that the coroutine was never awaited
            raise
        try:
            return future.result(patience_s)
        except CancelledError:
            raise RuntimeError(NOT_RUNNING) from None
        finally:
            given_up.set()
            future.cancel()
            with self._lock:
                self._waited.discard(future)

    async def _unless(self, given_up: threading.Event, work: Coroutine[Any, Any, Result]) -> Result:
        if given_up.is_set():
            work.close()
            raise asyncio.CancelledError
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    async def end(self) -> None:
        """Cancel running work, and wait until the work has ended. Call this on the loop."""
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_ENDING_S)

    def ended(self) -> None:
        """Wake all waiting threads. Call this after the loop is closed."""
        with self._lock:
            for future in self._waited:
                future.cancel()


async def to_its_end(work: Callable[[], Result]) -> Result:
    """Run a function in a thread and return its result. Even if cancelled, wait until the function has ended."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise

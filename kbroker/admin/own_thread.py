"""A daemon thread that runs blocking calls for an event loop, one at a time.

Unlike the thread of an executor, it never keeps a process from ending, even if a call waits for a network that does not
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError

T = TypeVar("T")


class Ended(AdminError):  # noqa: N818 - an outcome
    """The thread accepts no more calls."""


class OwnThread:
    """Runs calls in the order in which they were submitted."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], T]) -> T:
        """Return the result of a call; skip the call if its caller stops waiting before the call begins.

        Raises Ended, and every exception of the call.
        """
        if self._ended:
            raise Ended("the thread has ended")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((work, future))
        return await future

    def close(self, patience_s: float) -> None:
        """End the thread after the calls that were submitted so far; wait at most `patience_s` seconds for its end."""
        self._ended = True
        self._calls.put(None)
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            work, future = call
            if future.done():
                continue
            try:
                result, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - the caller's
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            del call, work, future, result, error


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)

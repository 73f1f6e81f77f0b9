"""The controller's work, one event at a time and in order.

Owns the queue and the futures of waiting callers. Work may wait for the tree without a time limit. No other work of the
controller runs meanwhile, so there are no races. (ControllerEventManager.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from kbroker.protocol.errors import ApiError, ErrorCode

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]


class Event:
    """One unit of work, and the future on which its caller waits."""

    __slots__ = ("future", "key", "work")

    def __init__(self, work: Work, key: Hashable = None, future: asyncio.Future[Any] | None = None) -> None:
        self.work = work
        self.key = key
        self.future = future

    def fail(self, error: ApiError) -> None:
        """Set the error of a waiting caller."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def succeed(self, result: Any) -> None:
        """Set the result of a waiting caller."""
        if self.future is not None and not self.future.done():
            self.future.set_result(result)


class EventQueue:
    """Events in order; at most one event per key is queued."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._keys: set[Hashable] = set()
        self._filled = asyncio.Event()
        self._is_resting = False

    @property
    def is_idle(self) -> bool:
        """Whether all work is done, and the queue is empty."""
        return self._is_resting and not self._events

    def put(self, work: Work, key: Hashable = None) -> None:
        """Queue work at the end, if no event with the same key is queued yet."""
        if key is not None:
            if key in self._keys:
                return
            self._keys.add(key)
        self._events.append(Event(work, key))
        self._filled.set()

    async def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Queue work and return its result. Raises ApiError: NOT_CONTROLLER if the work is dropped."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._events.append(Event(work, None, future))
        self._filled.set()
        return await future

    def clear(self) -> None:
        """Drop all queued work; waiting callers get NOT_CONTROLLER."""
        events, self._events = self._events, deque()
        self._keys.clear()
        for event in events:
            event.fail(ApiError(ErrorCode.NOT_CONTROLLER))

    async def next(self) -> Event:
        """Wait for the next event, and return it."""
        while not self._events:
            self._filled.clear()
            self._is_resting = True
            await self._filled.wait()
        self._is_resting = False
        event = self._events.popleft()
        if event.key is not None:
            self._keys.discard(event.key)
        return event

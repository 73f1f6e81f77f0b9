"""What a controller has to do, one thing at a time and in order.

Owns the queue and the futures of those who wait for an answer. Work may wait for the tree as long as it takes; nothing
else of the controller happens meanwhile, so that it need not be afraid of itself. (ControllerEventManager.)
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
    """One thing to do, and who waits for it."""

    __slots__ = ("future", "key", "work")

    def __init__(self, work: Work, key: Hashable = None, future: asyncio.Future[Any] | None = None) -> None:
        self.work = work
        self.key = key
        self.future = future

    def fail(self, error: ApiError) -> None:
        """Tell who waits that it was not done."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def succeed(self, result: Any) -> None:
        """Tell who waits what came of it."""
        if self.future is not None and not self.future.done():
            self.future.set_result(result)


class EventQueue:
    """Events in order; of one key no more than one waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._keys: set[Hashable] = set()
        self._filled = asyncio.Event()
        self._is_resting = False

    @property
    def is_idle(self) -> bool:
        """Whether all is done, and nothing waits."""
        return self._is_resting and not self._events

    def put(self, work: Work, key: Hashable = None) -> None:
        """Let work wait behind all other, unless the same waits already."""
        if key is not None:
            if key in self._keys:
                return
            self._keys.add(key)
        self._events.append(Event(work, key))
        self._filled.set()

    async def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let work have its turn and return what comes of it. Raises ApiError, NOT_CONTROLLER if it has none."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._events.append(Event(work, None, future))
        self._filled.set()
        return await future

    def clear(self) -> None:
        """Forget what waits; who waits for an answer hears NOT_CONTROLLER."""
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

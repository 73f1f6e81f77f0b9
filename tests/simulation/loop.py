"""An event loop for many processes, whose time jumps to the next timer once nothing is left to do.

Owns the order of execution: callbacks in the order in which they were scheduled, timers by time and then in that order.
A callback that was scheduled within a process (`Life`, by the callback's context) does not run once the process is
dead, and waits while it is frozen. Never decides what happens to a process or a message.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import socket
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.simulation.machine import LIFE


class Stuck(AssertionError):  # noqa: N818 - says what has happened
    """Nothing can ever happen any more, and a task waits."""


class Life:
    """One process from its start to its end."""

    def __init__(self, host: str, number: int) -> None:
        self.host = host
        self.number = number
        self.dead = False
        self.dying = False
        """The process is cut off from everything, and only releases its resources."""
        self.frozen = False
        self.held: list[asyncio.Handle] = []
        """The callbacks that wait while the process is frozen."""
        self.room: int | None = None
        """How many more bytes its disk accepts; None: no limit."""
        self.refused_writes = 0
        self.broker: Any = None
        self.context = contextvars.Context()
        self.context.run(LIFE.set, self)


class SimLoop(asyncio.BaseEventLoop):
    """`after(life)` is called after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0
        self.steps = 0
        self.after: Callable[[Life | None], None] = lambda _life: None
        self.trace: Callable[[str], None] | None = None
        self.network: Any = None
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._cancelled_timers = 0
        self.running: Life | None = None
        """The process whose callback runs."""
        self.world = contextvars.Context()
        """The context in which the world's own callbacks run."""

    def time(self) -> float:
        return self.passed

    # --- what is scheduled

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def in_world(self, delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        """Schedule a callback of the world after this many seconds."""
        return self.call_at(self.passed + delay, callback, *args, context=self.world)

    def _timer_handle_cancelled(self, _handle: Any) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers * 2 > len(self._timers) > 100:
            self._keep_timers(lambda _timer: True)

    def _keep_timers(self, wanted: Callable[[asyncio.TimerHandle], bool]) -> None:
        self._timers = [each for each in self._timers if not each[2]._cancelled and wanted(each[2])]
        heapq.heapify(self._timers)
        self._cancelled_timers = 0

    def forget(self, life: Life) -> None:
        """Drop the scheduled callbacks of a dead process."""
        life.held.clear()
        self._keep_timers(lambda timer: timer._context.get(LIFE) is not life)

    def thaw(self, life: Life) -> None:
        """Let a frozen process continue."""
        life.frozen = False
        held, life.held = life.held, []
        self._ready.extend(held)
        self.network.look_again(life)

    # --- what runs

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        self.network.poll(ready)
        if not ready and not self._stopping:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("nothing is scheduled any more")
            self.passed = max(self.passed, timers[0][0])
        while timers and timers[0][0] <= self.passed:
            timer = heapq.heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_timers = max(self._cancelled_timers - 1, 0)
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            self._run_one(ready.popleft())

    def _run_one(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        life = handle._context.get(LIFE)
        if life is not None:
            if life.dead:
                return
            if life.frozen:
                life.held.append(handle)
                return
        self.steps += 1
        self.running = life
        if self.trace is not None:
            who = "world" if life is None else f"{life.host}.{life.number}"
            self.trace(f"{self.steps} {self.passed:.6f} {who} {_name(handle)}")
        handle._run()
        self.after(life)

    # --- what asyncio's own loops do with a selector

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
        self.network.add_reader(fd, asyncio.Handle(callback, args, self, None))

    def remove_reader(self, fd: Any) -> bool:
        return bool(self.network.remove_reader(fd))

    def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
        self.network.add_writer(fd, asyncio.Handle(callback, args, self, None))

    def remove_writer(self, fd: Any) -> bool:
        return bool(self.network.remove_writer(fd))

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        """Return the address unchanged: no name is resolved."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)


def _name(handle: asyncio.Handle) -> str:
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {getattr(owner.get_coro(), '__qualname__', '')}"
    return getattr(callback, "__qualname__", type(callback).__name__)

"""The turns of connections, which divide the event loop's time among them.

Owns the queues of connections that could continue, the time used in a turn, and the check whether only one connection
has been served lately. Never knows what the work is.

Short work precedes long work. One request is short work for most clients, and a client that sends as fast as it can
does not notice a pause. One turn of the loop has three parts. First it serves the waiting short work, oldest first, for
at most TURN. Then it serves the long work, for at most TURN, or only for a slice if more short work waits. Finally, if
no short work is left, it serves the sockets that the poller reports, again for TURN. Each piece of long work continues
for a slice at a time, but at least for one request. If many connections wait, a slice is shorter, so that the last
connection has its turn soon. Sockets that the poller reports after the turn's end wait here. The poller always reports
sockets in the same order, so a busy client would otherwise exclude the clients after it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from typing import Protocol

TURN = 0.002
"""The time in seconds for waiting work in one turn of the loop. New work gets the same time in addition."""
SLICE = 0.0005
"""The maximum time in seconds for which one connection works before another connection has its turn."""
LONG = 0.000_15
"""The time in seconds above which a piece of work counts as long: about 10 small requests, or a batch of 100 kB."""
ALONE = 0.005
"""A connection counts as alone if no other connection was served for this many seconds."""
NOTED = 0.001
"""If a turn has used more than this time in seconds, the end of the turn is scheduled."""

now = time.perf_counter


class Runner(Protocol):
    """Work that can continue."""

    def go_on(self, deadline: float) -> None:
        """Run until `deadline` (in the time of `now()`) or to the end; if work is left, call `put`."""


class Breadth(Enum):
    """The amount of memory that a long request may use.

    It limits the number of such requests that run at the same time.
    """

    NARROW = 0
    """The request always uses little memory, so any number of such requests may run at the same time."""
    WIDE = 1
    """The request uses as much memory as its response.

    Only a limited number of such requests may run at the same time.
    """
    HUGE = 2
    """The request uses many times as much memory as its received bytes, so such requests run one at a time."""


class Lane:
    """A limit on the number of runners at a time. The runners beyond the limit wait in order."""

    def __init__(self, turns: Turns, width: int) -> None:
        self._turns = turns
        self._width = width
        self._on: set[Runner] = set()
        self._before: dict[Runner, None] = {}

    def enter(self, runner: Runner) -> bool:
        """Return whether `runner` may run now. If the limit is reached, the runner waits, and gets a turn later."""
        if runner in self._on:
            return True
        if len(self._on) < self._width:
            self._on.add(runner)
            return True
        self._before[runner] = None
        return False

    def leave(self, runner: Runner) -> None:
        """Remove `runner` from the lane or its queue, and let the next runner enter."""
        self._before.pop(runner, None)
        if runner in self._on:
            self._on.remove(runner)
            for first in self._before:
                del self._before[first]
                self._on.add(first)
                self._turns.put(first)
                break


class Turns:
    """The turns of one event loop."""

    __slots__ = ("_changed_at", "_lanes", "_long", "_loop", "_scheduled", "_short", "latest", "served", "spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._short: deque[Runner] = deque()
        self._long: deque[Runner] = deque()
        self._lanes = {Breadth.WIDE: Lane(self, 16), Breadth.HUGE: Lane(self, 1)}
        self._scheduled = False
        self.served = -1
        """The file descriptor that was served last."""
        self._changed_at = 0.0
        self.spent = 0.0
        """The seconds used in this turn. After TURN seconds, sockets that the poller reports wait for the next turn."""
        self.latest: Runner | None = None
        """The connection that read last.

        If the same connection reads again, it seems to be alone, and its long work continues immediately.
        """

    def lane(self, breadth: Breadth) -> Lane | None:
        """Return the lane that a long request must enter; None if it needs no lane."""
        return self._lanes.get(breadth)

    def serves(self, fd: int, at: float) -> None:
        """Record that a socket is read, or that it is written to because the poller has reported it."""
        if self.served != fd:
            self.served = fd
            self._changed_at = at

    def crowded(self, at: float) -> bool:
        """Whether other runners wait here, or may wait soon because another connection has been served lately."""
        return bool(self._short or self._long) or at - self._changed_at < ALONE

    def used(self, seconds: float) -> None:
        """Count time that was used outside the queues."""
        self.spent += seconds
        if self.spent > NOTED:
            self.note()

    def put(self, runner: Runner) -> None:
        """Continue `runner` when its turn comes. It must not be waiting already."""
        self._long.append(runner)
        self.note()

    def put_short(self, runner: Runner) -> None:
        """Continue `runner` when its turn comes, before long work."""
        self._short.append(runner)
        self.note()

    def note(self) -> None:
        """Schedule the end of this turn, because more seconds than NOTED are used or work waits."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        started = now()
        try:
            end = self._serve(self._short, started, started + TURN)
            self._serve(self._long, end, end + (SLICE if self._short else TURN))
        finally:
            self.spent = TURN if self._short else 0.0  # new work waits while short work is left
            if self._short or self._long:
                self.note()

    def _serve(self, queue: deque[Runner], at: float, end: float) -> float:
        """Run the runners that are waiting now. Stop at `end`, but run at least one runner. Return the current time."""
        for _ in range(len(queue)):
            runner = queue.popleft()
            runner.go_on(min(at + min(SLICE, TURN / (len(queue) + 1)), end))
            at = now()
            if at >= end:
                break
        return at

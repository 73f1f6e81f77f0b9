"""Whose turn it is: the share of the event loop that connections get.

Owns the queue of connections that could go on and have had their share, and the count of what a turn has used. Never
knows what is run.

One turn of the loop serves those that were waiting here, oldest first, for TURN at most, and then what the poller
tells, for as long again. A connection goes on for a slice at a time; with many waiting a slice is shorter, so that the
last of them comes soon, but at least one request. What the poller tells after that is left for the next turn: nothing
is read from such a client, and the poller tells of it again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from typing import Protocol

TURN = 0.002
"""Seconds that one turn gives to those that wait, and to those that come."""
SLICE = 0.0005
"""Seconds for one connection at a time."""
_NOTED = 0.001
"""Seconds that may be used before a turn's end is asked for: what is less does not matter."""

now = time.perf_counter


class Runner(Protocol):
    """Something that can go on."""

    def go_on(self, deadline: float) -> None:
        """Run until `deadline` (`now()`), or to the end; whoever has more to do then comes again with `put`."""


class Breadth(Enum):
    """How much memory a request may take on its way, by which long ones are held apart."""

    NARROW = 0
    """Little, whatever it asks for: as many as want to."""
    WIDE = 1
    """As much as its answer: some at a time."""
    HUGE = 2
    """Many times what came: one at a time."""


class Lane:
    """A way on which only so many may be at once; the others wait at its beginning, in order."""

    def __init__(self, turns: Turns, width: int) -> None:
        self._turns = turns
        self._width = width
        self._on: set[Runner] = set()
        self._before: dict[Runner, None] = {}

    def enter(self, runner: Runner) -> bool:
        """Tell whether `runner` is on the lane; if not, it is put into the turns once it is."""
        if runner in self._on:
            return True
        if len(self._on) < self._width:
            self._on.add(runner)
            return True
        self._before[runner] = None
        return False

    def leave(self, runner: Runner) -> None:
        """Make room, wherever `runner` is."""
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

    __slots__ = ("_lanes", "_loop", "_queue", "_scheduled", "spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[Runner] = deque()
        self._lanes = {Breadth.WIDE: Lane(self, 16), Breadth.HUGE: Lane(self, 1)}
        self._scheduled = False
        self.spent = 0.0
        """Seconds used in this turn. From TURN on, what the poller tells waits for the next one."""

    def lane(self, breadth: Breadth) -> Lane | None:
        """Return the lane that a long request has to be on; None: it needs none."""
        return self._lanes.get(breadth)

    def used(self, seconds: float) -> None:
        """Count what was used outside the queue."""
        self.spent += seconds
        if self.spent > _NOTED and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def put(self, runner: Runner) -> None:
        """Let `runner` go on when its turn comes. It must not be waiting already."""
        self._queue.append(runner)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        queue = self._queue
        started = now()
        end = started + TURN
        try:
            for _ in range(len(queue)):
                runner = queue.popleft()
                at = now()
                runner.go_on(min(at + min(SLICE, TURN / (len(queue) + 1)), end))
                if now() >= end:
                    break
        finally:  # whatever happens, there is a next turn
            self.spent = 0.0
            if queue and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._turn)

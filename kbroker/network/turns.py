"""The turns of connections: their shares of the event loop.

Owns the queues of connections that could continue, the time used in a turn, and whether one connection alone has been
served lately. Never knows the work.

Short work precedes long work: one request is short work for most clients, and a client that sends as fast as it can
does not notice a pause. One turn of the loop first serves the waiting short work, oldest first, for TURN at most. Then
it serves the long work, for TURN or, with more short work behind it, for a slice; and then, if no short work is left,
the sockets that the poller reports, for TURN again. Long work continues for a slice at a time; with many waiting a
slice is shorter, so that the last has its turn soon, but at least one request. Sockets that the poller reports after
that wait here: it reports the same sockets in the same order again and again, so that a busy client would keep out
those behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from enum import Enum
from typing import Protocol

TURN = 0.002
"""Seconds of one turn for waiting work, and for new work."""
SLICE = 0.0005
"""Seconds for one connection at a time."""
LONG = 0.000_15
"""Seconds at a time that make a connection's work long: some 10 small requests, or a batch of 100 kB."""
ALONE = 0.005
"""Seconds without service for any other connection after which one is taken to be alone."""
NOTED = 0.001
"""Seconds that may be used before a turn's end is scheduled: less does not matter."""

now = time.perf_counter


class Runner(Protocol):
    """Work that can continue."""

    def go_on(self, deadline: float) -> None:
        """Run until `deadline` (`now()`), or to the end; with more work left, calls `put` again."""


class Breadth(Enum):
    """How much memory a request may take while it runs, by which long requests are limited."""

    NARROW = 0
    """Little for any request: any number at a time."""
    WIDE = 1
    """As much as its response: some at a time."""
    HUGE = 2
    """Many times the received bytes: one at a time."""


class Lane:
    """A limit of the number of runners at a time; the others wait, in order."""

    def __init__(self, turns: Turns, width: int) -> None:
        self._turns = turns
        self._width = width
        self._on: set[Runner] = set()
        self._before: dict[Runner, None] = {}

    def enter(self, runner: Runner) -> bool:
        """Return whether `runner` is on the lane; otherwise it is put into the turns once it is."""
        if runner in self._on:
            return True
        if len(self._on) < self._width:
            self._on.add(runner)
            return True
        self._before[runner] = None
        return False

    def leave(self, runner: Runner) -> None:
        """Remove `runner` from the lane or its queue, and let the next one enter."""
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
        """The descriptor that was served last."""
        self._changed_at = 0.0
        self.spent = 0.0
        """Seconds used in this turn. From TURN on, sockets that the poller reports wait for the next one."""
        self.latest: Runner | None = None
        """The connection that read last. If it is the same again, its long work continues at once: it seems alone."""

    def lane(self, breadth: Breadth) -> Lane | None:
        """Return the lane that a long request must enter; None: it needs none."""
        return self._lanes.get(breadth)

    def serves(self, fd: int, at: float) -> None:
        """Note that a socket is read, or written to after the poller's report."""
        if self.served != fd:
            self.served = fd
            self._changed_at = at

    def crowded(self, at: float) -> bool:
        """Whether others wait here, or may be about to: more than one connection has been served lately."""
        return bool(self._short or self._long) or at - self._changed_at < ALONE

    def used(self, seconds: float) -> None:
        """Count time that was used outside the queues."""
        self.spent += seconds
        if self.spent > NOTED:
            self.note()

    def put(self, runner: Runner) -> None:
        """Continue `runner` in its turn. It must not be waiting already."""
        self._long.append(runner)
        self.note()

    def put_short(self, runner: Runner) -> None:
        """As `put`, before long work."""
        self._short.append(runner)
        self.note()

    def note(self) -> None:
        """Schedule the end of this turn: more than NOTED is used, or work waits."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        started = now()
        try:
            end = self._serve(self._short, started, started + TURN)
            self._serve(self._long, end, end + (SLICE if self._short else TURN))
        finally:  # there is a next turn in any case
            self.spent = TURN if self._short else 0.0  # new work waits behind the waiting work
            if self._short or self._long:
                self.note()

    def _serve(self, queue: deque[Runner], at: float, end: float) -> float:
        """Let the runners that wait now continue, one at least, until `end`; return the time."""
        for _ in range(len(queue)):
            runner = queue.popleft()
            runner.go_on(min(at + min(SLICE, TURN / (len(queue) + 1)), end))
            at = now()
            if at >= end:
                break
        return at

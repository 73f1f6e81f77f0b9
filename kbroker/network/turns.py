"""Whose turn it is: the share of the event loop that connections get.

Owns the queues of connections that could go on, the count of what a turn has used, and whether one connection alone
has been served lately. Never knows what is run.

Those that need little go before those that need much: one request is short work for most clients, and a client that
sends as fast as it can does not notice a pause. One turn of the loop serves the short that were waiting here, oldest
first, for TURN at most, then the long, for TURN or, with more short ones behind them, a slice; and then, if no short
one is left, what the poller tells, for TURN again. A long one goes on for a slice at a time; with many waiting a slice
is shorter, so that the last of them comes soon, but at least one request. What the poller tells after that waits here:
it tells of the same sockets in the same order again and again, so that who is never quiet would keep out who comes
behind.
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
LONG = 0.000_15
"""Seconds at a time from which on a connection needs much: some 10 small requests, or a batch of 100 kB."""
ALONE = 0.005
"""Seconds after which whoever is served, and nobody else, is taken to be alone."""
NOTED = 0.001
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

    __slots__ = ("_changed_at", "_lanes", "_long", "_loop", "_scheduled", "_short", "latest", "served", "spent")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._short: deque[Runner] = deque()
        self._long: deque[Runner] = deque()
        self._lanes = {Breadth.WIDE: Lane(self, 16), Breadth.HUGE: Lane(self, 1)}
        self._scheduled = False
        self.served = -1
        """Whose descriptor was served last."""
        self._changed_at = 0.0
        self.spent = 0.0
        """Seconds used in this turn. From TURN on, what the poller tells waits for the next one."""
        self.latest: Runner | None = None
        """Who read last. Who needs much goes on at once if that was itself: it seems to be alone."""

    def lane(self, breadth: Breadth) -> Lane | None:
        """Return the lane that a long request has to be on; None: it needs none."""
        return self._lanes.get(breadth)

    def serves(self, fd: int, at: float) -> None:
        """Note whose socket is read, or written to as the poller told."""
        if self.served != fd:
            self.served = fd
            self._changed_at = at

    def crowded(self, at: float) -> bool:
        """Whether anybody waits here, or may be about to: more than one has been served lately."""
        return bool(self._short or self._long) or at - self._changed_at < ALONE

    def used(self, seconds: float) -> None:
        """Count what was used outside the queues."""
        self.spent += seconds
        if self.spent > NOTED:
            self.note()

    def put(self, runner: Runner) -> None:
        """Let `runner` go on when its turn comes. It must not be waiting already."""
        self._long.append(runner)
        self.note()

    def put_short(self, runner: Runner) -> None:
        """As `put`, before those that need much."""
        self._short.append(runner)
        self.note()

    def note(self) -> None:
        """See that this turn comes to an end: more than NOTED is used, or somebody waits."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        started = now()
        try:
            end = self._serve(self._short, started, started + TURN)
            self._serve(self._long, end, end + (SLICE if self._short else TURN))
        finally:  # whatever happens, there is a next turn
            self.spent = TURN if self._short else 0.0  # who comes now comes after those
            if self._short or self._long:
                self.note()

    def _serve(self, queue: deque[Runner], at: float, end: float) -> float:
        """Let those that wait now go on, one at least, until `end`; return the time."""
        for _ in range(len(queue)):
            runner = queue.popleft()
            runner.go_on(min(at + min(SLICE, TURN / (len(queue) + 1)), end))
            at = now()
            if at >= end:
                break
        return at

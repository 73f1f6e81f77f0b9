"""The control of an embedded broker by its owner, from another thread than the broker's own.

Decides when requests pass the interceptor: while there are faults, or while requests are recorded. Allows only one
change of the broker's content or time at a time. Never decides the outcome of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import ClusterState
from kbroker.testing.calling import Calling, to_its_end
from kbroker.testing.faults import Faults
from kbroker.testing.gate import Entrance
from kbroker.testing.interceptor import Interceptor
from kbroker.testing.requests import Requests
from kbroker.testing.reset import reset
from kbroker.testing.steered_clock import SteeredClock

if TYPE_CHECKING:  # imported only when a test takes a snapshot
    from kbroker.log.directories.partition_dir_names import Key, MadeAhead
    from kbroker.testing.snapshot import Snapshot

_COPYING_S = 600.0
_PAUSE_S, _PAUSES = 0.01, 500
"""The seconds between checks, and the maximum number of checks.

The checks wait for the end of a compaction, or of schedules that are due, for five seconds in total.
"""


class Steering(Calling):
    """The control of one broker, created on first use."""

    def __init__(self, node: BrokerNode, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        super().__init__(loop, thread)
        self._node = node
        dispatcher = node.server.dispatcher
        self.faults = Faults(dispatcher.apis, node.clock.monotonic_ms, self._changed, [node.services.node_id])
        self.requests = Requests(dispatcher.apis)
        self._entrance = Entrance(node.server)
        self._interceptor = Interceptor(dispatcher, self.faults, self.requests, node.services, self._entrance)
        self._turns = threading.RLock()
        self._one_at_a_time = asyncio.Lock()  # cancelled work may end on the loop after its thread has returned
        self._newest_epoch = -1
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._clock = node.clock if isinstance(node.clock, SteeredClock) else None
        if self._clock is not None:
            self._clock.turn = self.turn
        if not self.is_alive:
            self.ended()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude every other reset, restore, snapshot and move of the clock within the `with` block."""
        self.check_thread()
        with self._turns:
            yield

    def record(self) -> Requests:
        """Return the requests. The recording begins at the first call."""
        if not self.requests.on:
            self.requests.start(late=self._node.server.count_opened > 0)
            self._changed()
        return self.requests

    def moved(self, ms: float) -> None:
        """Do all work that is due after the clock was moved."""
        if self.is_alive:
            self.wait_for(self._catch_up(ms))

    async def _catch_up(self, ms: float) -> None:
        node = self._node
        async with self._one_at_a_time:
            node.server.forgive(ms)
            await node.periodic_work.tick()
            for partition in list(node.replicas):
                if partition.log.maturity is not None:
                    partition.poke()  # the timers of fetches do not move with the clock
            for followed in node.schedules:
                followed.poke()  # the timer of schedules does not move with the clock
            for _ in range(_PAUSES):
                if not node.logs.cleaning and all(each.is_settled for each in node.schedules):
                    return
                await asyncio.sleep(_PAUSE_S)

    def reset(self, first: ClusterState) -> None:
        """Reset everything to its state at the start (see reset.py).

        Afterwards there are no faults and no recorded requests, and the clock shows the machine's time.
        """
        with self.turn():
            self.wait_for(self._reset(first))

    async def _reset(self, first: ClusterState) -> None:
        async with self._one_at_a_time:
            self.faults.clear()
            self._interceptor.break_waiting()
            self._set_clock(0)
            await reset(self._node, first)
            self.requests.clear()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the broker's content (see snapshot.py)."""
        with self.turn():
            taken = self.wait_for(self._snapshot(), _COPYING_S)
            self._snapshots.add(taken)
            return taken

    async def _snapshot(self) -> Snapshot:
        from kbroker.testing.snapshot import take

        async with self._one_at_a_time:
            taken = await take(self._node)
            taken.clock_ahead_ms = 0 if self._clock is None else self._clock.ahead_ms
            return taken

    def restore(self, snapshot: Snapshot) -> None:
        """Restore everything to its state at the time of a snapshot (see restoring.py).

        All other steps are those of `reset`. Afterwards the clock is as far ahead of the machine's time as it was at
        the snapshot.
        """
        if not hasattr(snapshot, "node"):
            raise TypeError(f"restore takes the result of snapshot(), not {snapshot!r}")
        if snapshot.node() is not self._node:
            raise ValueError("the snapshot is of another broker")
        with self.turn():
            if not snapshot.is_kept:
                raise RuntimeError("the snapshot was removed")
            self.wait_for(self._restore(snapshot), _COPYING_S)

    async def _restore(self, snapshot: Snapshot) -> None:
        from kbroker.testing.restoring import remove_files

        made: dict[Key, MadeAhead] = {}
        async with self._one_at_a_time:
            try:
                self.faults.clear()
                with self._entrance.shut():
                    self._interceptor.break_waiting()
                    await self._put_back(snapshot, made)
                    self.requests.clear()
            finally:
                left = dict(made)  # after an error
                if left:
                    await to_its_end(lambda: remove_files(left))

    async def _put_back(self, snapshot: Snapshot, made: dict[Key, MadeAhead]) -> None:
        from kbroker.testing.restored_coordinators import empty_groups, known_now, settle
        from kbroker.testing.restoring import changed_logs, highest_epoch, make_files, put_back

        node = self._node
        logs = changed_logs(node, snapshot)
        if logs:
            await to_its_end(lambda: make_files(node, logs, snapshot.state, made))
        self._set_clock(snapshot.clock_ahead_ms)
        self._newest_epoch = max(self._newest_epoch, highest_epoch(node.controller.decided, snapshot.state)) + 1
        before = known_now(node.transactions)
        await put_back(node, snapshot, made, self._newest_epoch)
        node.services.share.forget_all()
        await empty_groups(node)
        await settle(node.transactions, before, node.clock)

    def _set_clock(self, ahead_ms: int) -> None:
        if self._clock is not None:
            self._clock.reset(ahead_ms)

    async def end(self) -> None:
        """Close the connections of requests that a fault delays, and end running work."""
        self._interceptor.break_waiting()
        await super().end()

    def ended(self) -> None:
        """Wake all threads that wait for the broker or for requests. Call this after the loop is closed."""
        super().ended()
        self.faults.end()
        self.requests.end()

    def close(self) -> None:
        """Remove the broker's snapshots, which are outside its data directory."""
        for each in list(self._snapshots):
            each.remove()

    def _changed(self) -> None:
        if self.is_alive:
            self.call(self._divert)

    def _divert(self) -> None:
        wanted = bool(self.faults.active) or self.requests.on
        self._node.server.refuses = self.faults.refuses_connections
        self._entrance.intercept(self._interceptor.run if wanted else None)

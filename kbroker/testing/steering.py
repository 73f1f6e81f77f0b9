"""What an embedded broker's owner can do with it beside its service, from another thread than the broker's.

Owns when requests go through the interceptor: while there are faults, or while they are recorded. Never decides what
becomes of one.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import ClusterState
from kbroker.testing.faults import Faults
from kbroker.testing.interceptor import Interceptor
from kbroker.testing.requests import Requests
from kbroker.testing.reset import reset

if TYPE_CHECKING:  # loaded where a test takes a snapshot
    from kbroker.log.directories.partition_dirs import Key, MadeAhead
    from kbroker.testing.snapshot import Snapshot

Result = TypeVar("Result")
_PATIENCE_S = 10.0
_COPYING_S = 600.0
_PAUSE_S, _PAUSES = 0.01, 500
"""How a compaction is waited for, for five seconds at most."""


class Steering:
    """One broker's; made when its owner first asks for any of it."""

    def __init__(self, node: BrokerNode, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._node = node
        self._loop = loop
        self._thread = thread
        dispatcher = node.server.dispatcher
        self.faults = Faults(dispatcher.apis, node.clock.monotonic_ms, self._changed)
        self.requests = Requests(dispatcher.apis)
        self._interceptor = Interceptor(dispatcher, self.faults, self.requests, node.services)
        self._restoring = threading.Lock()
        self._newest_epoch = -1
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()

    def record(self) -> Requests:
        """Return the requests, which are recorded from the first call on."""
        if not self.requests.on:
            self.requests.on = True
            self._changed()
        return self.requests

    def call(self, work: Callable[[], Result]) -> Result:
        """Do something in the broker's thread, and return what it returns. Raises RuntimeError once it has stopped."""
        if threading.current_thread() is self._thread:
            return work()
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as err:  # noqa: BLE001 - for the thread that waits
                done.set_exception(err)

        self._loop.call_soon_threadsafe(run)
        return done.result(_PATIENCE_S)

    def wait_for(self, work: Coroutine[Any, Any, Result], patience_s: float = _PATIENCE_S) -> Result:
        """Have the broker's loop do something, and return what comes of it.

        Raises RuntimeError once the broker has stopped, and in its own thread, as in a fault's `where`.
        """
        why = ""
        if threading.current_thread() is self._thread:
            why = "this cannot be asked in the broker's own thread, which would have to answer"
        elif not self._thread.is_alive():
            why = "the broker does not run any more"
        if why:
            work.close()  # or Python tells that nobody awaited it
            raise RuntimeError(why)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(patience_s)

    def moved(self, ms: float) -> None:
        """Have done what is due by a clock that was moved."""
        if self._thread.is_alive():
            self.wait_for(self._catch_up(ms))

    async def _catch_up(self, ms: float) -> None:
        node = self._node
        node.server.forgive(ms)
        await node.periodic_work.tick()
        for _ in range(_PAUSES):
            if not node.logs.cleaning:
                return
            await asyncio.sleep(_PAUSE_S)

    def reset(self, first: ClusterState) -> None:
        """Have everything as it was at the start: see reset.py. Faults are removed, requests forgotten."""
        self.faults.clear()
        self.wait_for(reset(self._node, first))
        self.requests.clear()

    def snapshot(self) -> Snapshot:
        """Return what lies in the broker: see snapshot.py."""
        from kbroker.testing.snapshot import take

        taken = self.wait_for(take(self._node), _COPYING_S)
        self._snapshots.add(taken)
        return taken

    def restore(self, snapshot: Snapshot, empty_groups: Callable[[], None]) -> None:
        """Have everything as it was when a snapshot was taken: see restoring.py. As `reset` otherwise."""
        if snapshot.node() is not self._node:
            raise ValueError("the snapshot is of another broker")
        with self._restoring:
            if not snapshot.is_kept:
                raise RuntimeError("the snapshot was removed")
            self.faults.clear()
            self._put_back(snapshot, empty_groups)
            self.requests.clear()

    def _put_back(self, snapshot: Snapshot, empty_groups: Callable[[], None]) -> None:
        from kbroker.testing.gate import Gate
        from kbroker.testing.restored_transactions import known_now, settle
        from kbroker.testing.restoring import changed_logs, highest_epoch, make_files, put_back, remove_files

        node = self._node
        gate = self.call(lambda: Gate(node.server.dispatcher))
        self.call(lambda: node.server.divert(gate.run))
        made: dict[Key, MadeAhead] = {}
        try:
            logs = self.call(lambda: changed_logs(node, snapshot))
            made |= make_files(node, logs, snapshot.state)
            epoch = max(self._newest_epoch, highest_epoch(node.controller.decided, snapshot.state)) + 1
            self._newest_epoch = epoch
            before = self.call(lambda: known_now(node.transactions))
            self.wait_for(put_back(node, snapshot, made, epoch), _COPYING_S)
            empty_groups()
            self.wait_for(settle(node.transactions, before, node.clock), _COPYING_S)
        finally:
            remove_files(made)  # what is left where something has failed
            self.call(self._divert)
            self.call(gate.open)

    def close(self) -> None:
        """Let go what lies outside of the broker."""
        for each in list(self._snapshots):
            each.remove()

    def _changed(self) -> None:
        if self._thread.is_alive():
            self.call(self._divert)

    def _divert(self) -> None:
        wanted = bool(self.faults.active) or self.requests.on
        self._node.server.refuses = self.faults.refuses_connections
        self._node.server.divert(self._interceptor.run if wanted else None)

"""A broker's connection to ZooKeeper: the tree in memory, behind a connection that may be slow, break, or fall silent.

Owns the sessions. A session ends when its process was silent for `timeout_s`, because it is dead, frozen or cut off;
the process learns of it when it returns. The contents of the tree, and what a change may do, belong to
kbroker/controller/tree/memory.py. Requests and responses of a session stay in order, as with ZooKeeper.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import (
    Change,
    Changed,
    Done,
    Reason,
    Refused,
    Session,
    SessionExpired,
    Unreachable,
    Znode,
)
from tests.simulation.loop import Life, SimLoop

_RECONNECT_S = 0.05


class SimTree:
    """A MetadataTree for one process."""

    def __init__(self, ensemble: MemoryEnsemble, loop: SimLoop, random: Random, life: Life, timeout_s: float) -> None:
        self._ensemble, self._loop, self._random, self._life = ensemble, loop, random, life
        self._timeout_s = timeout_s
        self._listeners: list[Callable[[Session], None]] = []
        self._watched: dict[tuple[str, bool], dict[Changed, None]] = {}
        """Watches that the ensemble knows."""
        self._told: dict[Changed, None] = {}
        """Watches that have fired, and whose notification is in transit."""
        self._connection = 0
        """Increases whenever a connection breaks: everything in transit is then lost."""
        self._connected = True
        self._unheard = 0
        """Increases with each silence: only the latest silence ends the session."""
        self._silent = False
        self._no_way = 0
        self._closed = False
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._there = self._back = 0.0
        self.expiries = 0
        self.session_id = ensemble.begin(self)  # type: ignore[arg-type]

    # --- MetadataTree

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        def look() -> Znode | None:
            if changed is not None:
                self._watched.setdefault((path, False), {})[changed] = None
            found = self._ensemble.read(path)
            return found and found[0]

        found: Znode | None = await self._ask(look)
        return found

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        def look() -> list[str]:
            found = self._ensemble.read(path)
            if found is None:
                raise Refused(0, path, Reason.NO_NODE)
            if changed is not None:
                self._watched.setdefault((path, True), {})[changed] = None
            return found[1]

        found: list[str] = await self._ask(look)
        return found

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        done: list[Done] = await self._ask(lambda: self._ensemble.commit(self.session_id, changes))
        return done

    def listen(self, listener: Callable[[Session], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._life.dying:
                self._ensemble.end(self.session_id)

    # --- requests and answers

    async def _ask(self, work: Callable[[], Any]) -> Any:
        if self._closed or self._life.dying:
            raise SessionExpired("the session is gone")
        if not self._connected:
            await asyncio.sleep(0.001)
            raise Unreachable("the metadata ensemble is not reachable")
        future = self._loop.create_future()
        self._asked[future] = None
        self._there = self._in_order(self._there, self._arrive, self._connection, work, future)
        try:
            return await future
        finally:
            self._asked.pop(future, None)

    def _in_order(self, last: float, deliver: Callable[..., None], *what: Any) -> float:
        """Schedule a delivery after a while, and after all earlier ones; return when."""
        now = self._loop.time()
        when = max(last, now + self._random.expovariate(1 / 0.002) + 0.0002)
        self._loop.in_world(when - now, deliver, *what)
        return when

    def _arrive(self, connection: int, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        if connection != self._connection or self._life.dead:
            return
        if not self._is_live():
            self._lose_connection()
            return
        result, error = None, None
        try:
            result = work()
        except Refused as refused:
            error = refused
        self._back = self._in_order(self._back, self._answer, connection, future, result, error)

    def _answer(self, connection: int, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if connection != self._connection or future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def fire_watches(self, path: str, children: bool) -> None:
        """Receive from the ensemble that a node has changed."""
        for changed in self._watched.pop((path or "/", children), {}):
            self._told[changed] = None
            self._back = self._in_order(self._back, self._go_off, self._connection, changed)

    def _go_off(self, connection: int, changed: Changed) -> None:
        if connection == self._connection and self._told.pop(changed, self) is None:
            self._loop.call_soon(changed, context=self._life.context)

    def _notify_session(self, session: Session) -> None:
        for listener in self._listeners:
            listener(session)

    # --- the connection and the session

    def _is_live(self) -> bool:
        return self._ensemble._sessions.get(self.session_id) is self  # type: ignore[comparison-overlap]

    def _lose_connection(self) -> None:
        """Lose everything in transit, and notify the process."""
        if not self._connected or self._closed:
            return
        self._connection += 1
        self._connected = False
        watched = [changed for each in self._watched.values() for changed in each] + list(self._told)
        self._watched, self._told = {}, {}
        asked, self._asked = self._asked, {}
        for future in asked:
            if not future.done():
                future.set_exception(Unreachable("the connection was lost"))
        self._loop.call_soon(self._notify_session, Session.UNREACHABLE, context=self._life.context)
        for changed in dict.fromkeys(watched):
            self._loop.call_soon(changed, context=self._life.context)
        self._connect_later()

    def _connect_later(self) -> None:
        self._loop.call_later(_RECONNECT_S, self._connect, context=self._life.context)

    def _connect(self) -> None:
        """In the process: connect again, with the old session or, if it has ended, with a new one.

        A process that was frozen when it was killed still runs for a while: it must not begin a session, which nobody
        would end.
        """
        if self._closed or self._connected or self._life.dying:
            return
        if self._no_way:
            self._connect_later()
            return
        if not self._is_live():
            self._notify_session(Session.EXPIRED)
            self.session_id = self._ensemble.begin(self)  # type: ignore[arg-type]
        self._connected = True
        self._notify_session(Session.LIVE)

    def break_connection(self) -> None:
        """Lose the connection; the process connects again as soon as there is a way."""
        self._lose_connection()

    def expire(self) -> None:
        """End the session now, as an operator may do."""
        if self._is_live():
            self.expiries += 1
            self._ensemble.end(self.session_id)
            self._watched.clear()
            self._lose_connection()

    def cut(self) -> None:
        """Cut the way to ZooKeeper."""
        self._no_way += 1
        self._lose_connection()
        self.be_silent()

    def heal(self) -> None:
        self._no_way -= 1
        if not self._no_way and not self._life.frozen:
            self.be_heard()

    def be_silent(self) -> None:
        """Note that ZooKeeper receives nothing more from the process, which is cut off, frozen or dead."""
        if not self._silent:
            self._silent = True
            self._unheard += 1
            self._loop.in_world(self._timeout_s, self._end_unheard, self._unheard)

    def be_heard(self) -> None:
        """Note that the process runs, and reaches ZooKeeper, again."""
        if self._silent and not self._no_way and not self._life.dying:
            self._silent = False
            self._unheard += 1
            if not self._is_live():
                self._lose_connection()

    def _end_unheard(self, silence: int) -> None:
        if silence == self._unheard and self._is_live():
            self.expiries += 1
            self._ensemble.end(self.session_id)
            self._watched.clear()

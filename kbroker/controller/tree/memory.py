"""A tree of znodes in this process, for clusters within one process: tests, the simulator, and `Cluster` in Python.

Owns an ensemble's nodes and its sessions, with ZooKeeper's behaviour: versions, multi, ephemerals that are removed with
their session, sequence numbers, one-time watches. The owner of a session may expire it, and cut its connection. Never
uses a clock. Never answers in the same turn of the event loop, because ZooKeeper cannot do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from kbroker.controller.tree.znode import (
    ANY_VERSION,
    Change,
    Changed,
    Create,
    Delete,
    Done,
    Reason,
    Refused,
    Session,
    SessionExpired,
    SetData,
    Stat,
    Unreachable,
    Znode,
)

Watches = dict[str, dict[Changed, None]]


@dataclass(slots=True)
class _Node:
    data: bytes
    stat: Stat
    children: set[str] = field(default_factory=set)
    ever: int = 0
    """The number of children that were ever created. This number is the next sequence number."""


class MemoryEnsemble:
    """The state shared by all sessions."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {"": _Node(b"", Stat(0, 0))}
        self._transactions = count(1)
        self._sessions: dict[int, MemoryTree] = {}
        self._numbers = count(1)

    def connect(self) -> MemoryTree:
        """Begin a session."""
        return MemoryTree(self)

    def begin(self, tree: MemoryTree) -> int:
        """Begin a session for a tree; return its number."""
        number = next(self._numbers)
        self._sessions[number] = tree
        return number

    def end(self, session: int) -> None:
        """End a session, and remove its ephemeral nodes."""
        self._sessions.pop(session, None)
        for path in [path for path, node in self._nodes.items() if node.stat.owner == session]:
            self._remove(path)

    def read(self, path: str) -> tuple[Znode, list[str]] | None:
        """Return the node at `path`, and the sorted names below it."""
        node = self._get(path)
        return None if node is None else (Znode(node.data, node.stat), sorted(node.children))

    def _get(self, path: str) -> _Node | None:
        return self._nodes.get("" if path == "/" else path)

    def commit(self, session: int, changes: Sequence[Change]) -> list[Done]:
        """Make all changes or none, and fire the watches of changed nodes. Raises Refused."""
        before: dict[str, _Node | None] = {}
        number = next(self._transactions)
        touched: list[tuple[str, bool]] = []
        done: list[Done] = []
        try:
            for index, change in enumerate(changes):
                done.append(self._do(index, change, session, number, before, touched))
        except Refused:
            for path, node in before.items():
                if node is None:
                    self._nodes.pop(path, None)
                else:
                    self._nodes[path] = node
            raise
        for path, children in touched:
            self._fire_watches(path, children)
        return done

    def _do(
        self,
        index: int,
        change: Change,
        session: int,
        number: int,
        before: dict[str, _Node | None],
        touched: list[tuple[str, bool]],
    ) -> Done:
        path = change.path
        parent = path.rpartition("/")[0]
        if isinstance(change, Create):
            above = self._nodes.get(parent)
            if above is None:
                raise Refused(index, path, Reason.NO_NODE)
            if change.sequential:
                path = f"{path}{above.ever:010d}"
            if path in self._nodes:
                raise Refused(index, change.path, Reason.NODE_EXISTS)
            if above.stat.owner:
                raise Refused(index, change.path, Reason.NO_CHILDREN_FOR_EPHEMERALS)
            self._keep(before, path, parent)
            self._nodes[path] = _Node(change.data, Stat(number, 0, session if change.ephemeral else 0, -1, number))
            self._nodes[parent].children.add(path.rpartition("/")[2])
            self._nodes[parent].ever += 1
            touched += [(path, False), (parent, True)]
            return Done(path)
        node = self._get(path)
        if node is None:
            raise Refused(index, path, Reason.NO_NODE)
        if change.version not in (ANY_VERSION, node.stat.version):
            raise Refused(index, path, Reason.BAD_VERSION)
        if isinstance(change, SetData):
            self._keep(before, path)
            node = self._nodes[path]
            node.data, node.stat = change.data, replace(node.stat, version=node.stat.version + 1, modified=number)
            touched.append((path, False))
            return Done(path, node.stat)
        if isinstance(change, Delete):
            if node.children:
                raise Refused(index, path, Reason.NOT_EMPTY)
            self._keep(before, path, parent)
            del self._nodes[path]
            self._nodes[parent].children.discard(path.rpartition("/")[2])
            touched += [(path, False), (path, True), (parent, True)]
        return Done(path)

    def _keep(self, before: dict[str, _Node | None], *paths: str) -> None:
        """Save the nodes at `paths` for a rollback of the batch, and replace them by copies."""
        for path in paths:
            if path not in before:
                node = before[path] = self._nodes.get(path)
                if node is not None:
                    self._nodes[path] = replace(node, children=set(node.children))

    def _remove(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        del self._nodes[path]
        self._nodes[parent].children.discard(name)
        for each, children in ((path, False), (path, True), (parent, True)):
            self._fire_watches(each, children)

    def _fire_watches(self, path: str, children: bool) -> None:
        for tree in list(self._sessions.values()):
            tree.fire_watches(path, children)


class MemoryTree:
    """A MetadataTree over an ensemble in this process."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self._ensemble = ensemble
        self._listeners: list[Callable[[Session], None]] = []
        self._data_watches: Watches = {}
        self._child_watches: Watches = {}
        self._reachable = True
        self._closed = self._expired = False
        self.session_id = ensemble.begin(self)

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        await self._reach_ensemble()
        if changed is not None:
            self._data_watches.setdefault(path, {})[changed] = None
        found = self._ensemble.read(path)
        return found and found[0]

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        await self._reach_ensemble()
        found = self._ensemble.read(path)
        if found is None:
            raise Refused(0, path, Reason.NO_NODE)
        if changed is not None:
            self._child_watches.setdefault(path, {})[changed] = None
        return found[1]

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        await self._reach_ensemble()
        return self._ensemble.commit(self.session_id, changes)

    def listen(self, listener: Callable[[Session], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._ensemble.end(self.session_id)
            self._drop_watches()

    @property
    def is_reachable(self) -> bool:
        """Whether the ensemble is reachable, in a live session."""
        return self._reachable and not self._expired and not self._closed

    async def _reach_ensemble(self) -> None:
        """Simulate the network: requests reach the ensemble in the order of sending, in a later turn of the loop."""
        session, loop = self.session_id, asyncio.get_running_loop()
        arrival: asyncio.Future[None] = loop.create_future()
        loop.call_soon(_arrive, arrival)
        await arrival
        if self._closed or session != self.session_id:
            raise SessionExpired("the session has expired")
        if not self._reachable:
            raise Unreachable("the metadata ensemble is not reachable")

    def expire(self) -> None:
        """End the session, as ZooKeeper does after the session timeout; another session begins.

        If the tree's connection is cut, the tree is notified when the connection is back.
        """
        self._ensemble.end(self.session_id)
        self._drop_watches()
        self._expired = True
        if self._reachable:
            self._renew_session()

    def _renew_session(self) -> None:
        self._expired = False
        self._notify_session(Session.EXPIRED)
        self.session_id = self._ensemble.begin(self)
        self._notify_session(Session.LIVE)

    def cut(self) -> None:
        """Cut the connection; the session continues."""
        self._reachable = False
        self._drop_watches()
        self._notify_session(Session.UNREACHABLE)

    def heal(self) -> None:
        """Restore the connection."""
        self._reachable = True
        if self._expired:
            self._renew_session()
        else:
            self._notify_session(Session.LIVE)

    def _notify_session(self, session: Session) -> None:
        for listener in self._listeners:
            listener(session)

    def fire_watches(self, path: str, children: bool) -> None:
        """Fire the watches of a node's data or children."""
        watches = self._child_watches if children else self._data_watches
        for changed in watches.pop(path or "/", {}):
            asyncio.get_running_loop().call_soon(changed)

    def _drop_watches(self) -> None:
        """Fire all watches now, because their events can no longer be delivered."""
        watches = [*self._data_watches.values(), *self._child_watches.values()]
        self._data_watches, self._child_watches = {}, {}
        for each in watches:
            for changed in each:
                changed()


def _arrive(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)

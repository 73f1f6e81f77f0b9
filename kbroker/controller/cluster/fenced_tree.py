"""The controller's access to the tree.

Requests wait for a new connection after a loss; writes fail after the next election. Owns the time for which a request
is retried (while the session is live), and the check of /controller_epoch with every write (KIP-237). Never interprets
the written data, except the epoch.

A write may succeed although its response is lost. A writer that retries then finds the node changed, and has to check
whether its own first attempt changed the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from kbroker.controller.tree.znode import (
    Change,
    Changed,
    Check,
    Create,
    Delete,
    Done,
    MetadataTree,
    Reason,
    Refused,
    SessionExpired,
    SetData,
    Unreachable,
    Znode,
)
from kbroker.controller.znodes import CONTROLLER, CONTROLLER_EPOCH, ControllerNode, read, read_number

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
"""Waits for a number of seconds."""

_RETRY_SECONDS = 0.05


class ControllerMoved(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """Another controller was elected, so this controller cannot write any more."""


class SteadyTree:
    """A tree in one session. The session was live when this object was created.

    While the connection is lost, requests wait. Raises SessionExpired when the session has ended, even if another
    session follows.
    """

    def __init__(self, tree: MetadataTree, sleep: Sleep) -> None:
        self._tree = tree
        self._sleep = sleep
        self._connected = asyncio.Event()
        self._connected.set()
        self._ended = False
        self.session_id = tree.session_id

    def disconnected(self) -> None:
        """Pause all requests."""
        self._connected.clear()

    def reconnected(self) -> None:
        """Resume the waiting requests."""
        self._connected.set()

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, or `end` was called."""
        return self._ended or self._tree.session_id != self.session_id

    def end(self) -> None:
        """Refuse all further requests."""
        self._ended = True
        self._connected.set()

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return a node, or None."""
        return await self._steadily(lambda: self._tree.get(path, changed))

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the sorted names below a node; empty if the node is missing."""
        try:
            return await self._steadily(lambda: self._tree.children(path, changed))
        except Refused:
            return []

    async def commit(self, *changes: Change) -> list[Done]:
        """Make all changes or none. Raises Refused."""
        return await self._steadily(lambda: self._tree.commit(changes))

    async def _steadily(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            if self.is_over:
                raise SessionExpired("the controller's session has expired")
            try:
                return await ask()
            except SessionExpired:
                raise
            except Unreachable:
                if self._connected.is_set():  # `listen` has not reported the loss yet, or the connection is back
                    await self._sleep(_RETRY_SECONDS)
                await self._connected.wait()


class FencedTree:
    """A tree that accepts a controller's writes until a later controller is elected."""

    def __init__(self, tree: SteadyTree, epoch: int, epoch_version: int) -> None:
        self._tree = tree
        self.epoch = epoch
        self._check = Check(CONTROLLER_EPOCH, epoch_version)

    @property
    def is_over(self) -> bool:
        """Whether the session of the controller's election has ended."""
        return self._tree.is_over

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return a node, or None."""
        return await self._tree.get(path, changed)

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the sorted names below a node; empty if the node is missing."""
        return await self._tree.children(path, changed)

    async def commit(self, *changes: Change) -> list[Done]:
        """Make all changes or none. Raises Refused, ControllerMoved."""
        try:
            return (await self._tree.commit(self._check, *changes))[1:]
        except Refused as refused:
            if refused.index == 0:
                raise ControllerMoved(f"a later controller than that of epoch {self.epoch} was elected") from None
            raise Refused(refused.index - 1, refused.path, refused.reason) from None

    async def set(self, path: str, data: bytes, version: int) -> int | None:
        """Write a node that has the given version.

        Return the new version, or None if there is no node with this version.
        """
        try:
            (done,) = await self.commit(SetData(path, data, version))
        except Refused:
            return None
        assert done.stat is not None
        return done.stat.version

    async def create(self, path: str, data: bytes = b"") -> bool:
        """Create a node; return False if it exists."""
        try:
            await self.commit(Create(path, data))
        except Refused as refused:
            if refused.reason is Reason.NODE_EXISTS:
                return False
            raise
        return True

    async def delete(self, path: str) -> None:
        """Remove a node if it exists. Raises Refused if it has children."""
        try:
            await self.commit(Delete(path))
        except Refused as refused:
            if refused.reason is not Reason.NO_NODE:
                raise

    async def delete_below(self, path: str) -> None:
        """Remove a node and everything below it."""
        while True:
            for name in await self.children(path):
                await self.delete_below(f"{path}/{name}")
            try:
                return await self.delete(path)
            except Refused as refused:  # a child was created meanwhile
                if refused.reason is not Reason.NOT_EMPTY:
                    raise


async def claim(tree: SteadyTree, node_id: int, now_ms: int) -> FencedTree | None:
    """Try to become the controller: write /controller for this session and the next epoch in one transaction.

    Return None on failure.

    Raises Unreadable if the epoch is not a number.
    """
    while True:
        found = await tree.get(CONTROLLER_EPOCH)
        if found is None:
            with suppress(Refused):  # another broker was faster
                await tree.commit(Create(CONTROLLER_EPOCH, b"0"))
            continue
        epoch = read_number(CONTROLLER_EPOCH, found.data) + 1
        node = ControllerNode(node_id, now_ms).encode()
        set_epoch = SetData(CONTROLLER_EPOCH, str(epoch).encode(), found.stat.version)
        try:
            _, done = await tree.commit(Create(CONTROLLER, node, ephemeral=True), set_epoch)
        except Refused:
            return await _own(tree, node_id, epoch)
        assert done.stat is not None
        return FencedTree(tree, epoch, done.stat.version)


async def _own(tree: SteadyTree, node_id: int, epoch: int) -> FencedTree | None:
    """Return the tree if an earlier attempt of this claim succeeded and only its response was lost."""
    holder, found = await tree.get(CONTROLLER), await tree.get(CONTROLLER_EPOCH)
    if holder is None or found is None or holder.stat.owner != tree.session_id:
        return None
    if read(CONTROLLER, holder.data, ControllerNode.decode).broker_id != node_id:
        return None
    if read_number(CONTROLLER_EPOCH, found.data) != epoch:
        return None
    return FencedTree(tree, epoch, found.stat.version)

"""The tree as a controller sees it: patient while the connection is lost, and closed to it once another one is elected.

Owns how long it asks (as long as its session lives), and the check of /controller_epoch that goes with every write
(KIP-237). Never interprets what it writes, but for the epoch.

An answer that was lost may belong to a write that was made: whoever writes a second time finds the node changed, and
has to look whether that was itself.
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
"""Waits for so many seconds."""

_RETRY_SECONDS = 0.05


class ControllerMoved(Exception):  # noqa: N818 - an outcome to be handled, not a fault
    """Somebody else was elected: nothing more can be written."""


class SteadyTree:
    """A tree seen through the session that is live when this is made; what is asked waits out a lost connection.

    Raises SessionExpired once that session is gone, whatever comes after it.
    """

    def __init__(self, tree: MetadataTree, sleep: Sleep) -> None:
        self._tree = tree
        self._sleep = sleep
        self._connected = asyncio.Event()
        self._connected.set()
        self._ended = False
        self.session_id = tree.session_id

    def disconnected(self) -> None:
        """Ask nothing for now."""
        self._connected.clear()

    def reconnected(self) -> None:
        """Go on with what waits."""
        self._connected.set()

    @property
    def is_over(self) -> bool:
        """Whether the session is gone, or nothing is asked any more."""
        return self._ended or self._tree.session_id != self.session_id

    def end(self) -> None:
        """Ask nothing any more."""
        self._ended = True
        self._connected.set()

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return a node, or None."""
        return await self._steadily(lambda: self._tree.get(path, changed))

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the sorted names below a node; none where there is no node."""
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
                raise SessionExpired("the controller's session is gone")
            try:
                return await ask()
            except SessionExpired:
                raise
            except Unreachable:
                if self._connected.is_set():  # it is not known yet, or over by now
                    await self._sleep(_RETRY_SECONDS)
                await self._connected.wait()


class FencedTree:
    """A tree to which a controller of one epoch writes, as long as no later one is elected."""

    def __init__(self, tree: SteadyTree, epoch: int, epoch_version: int) -> None:
        self._tree = tree
        self.epoch = epoch
        self._check = Check(CONTROLLER_EPOCH, epoch_version)

    @property
    def is_over(self) -> bool:
        """Whether the session is gone by which the controller was elected."""
        return self._tree.is_over

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        """Return a node, or None."""
        return await self._tree.get(path, changed)

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        """Return the sorted names below a node; none where there is no node."""
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
        """Write a node that has this version; return its new one, None where it has another or is gone."""
        try:
            (done,) = await self.commit(SetData(path, data, version))
        except Refused:
            return None
        assert done.stat is not None
        return done.stat.version

    async def create(self, path: str, data: bytes = b"") -> bool:
        """Make a node; return whether it was not there."""
        try:
            await self.commit(Create(path, data))
        except Refused as refused:
            if refused.reason is Reason.NODE_EXISTS:
                return False
            raise
        return True

    async def delete(self, path: str) -> None:
        """Remove a node, if it is there. Raises Refused where it has children."""
        try:
            await self.commit(Delete(path))
        except Refused as refused:
            if refused.reason is not Reason.NO_NODE:
                raise

    async def delete_below(self, path: str) -> None:
        """Remove a node with all below it."""
        while True:
            for name in await self.children(path):
                await self.delete_below(f"{path}/{name}")
            try:
                return await self.delete(path)
            except Refused as refused:  # something has come meanwhile
                if refused.reason is not Reason.NOT_EMPTY:
                    raise


async def claim(tree: SteadyTree, node_id: int, now_ms: int) -> FencedTree | None:
    """Try to become the controller: /controller for this session, and the next epoch, in one. None: somebody else is.

    Raises Unreadable where the epoch is no number.
    """
    while True:
        found = await tree.get(CONTROLLER_EPOCH)
        if found is None:
            with suppress(Refused):  # another one was faster
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
    """Return whether the claim that was refused had been made before, and only its answer was lost."""
    holder, found = await tree.get(CONTROLLER), await tree.get(CONTROLLER_EPOCH)
    if holder is None or found is None or holder.stat.owner != tree.session_id:
        return None
    if read(CONTROLLER, holder.data, ControllerNode.decode).broker_id != node_id:
        return None
    if read_number(CONTROLLER_EPOCH, found.data) != epoch:
        return None
    return FencedTree(tree, epoch, found.stat.version)

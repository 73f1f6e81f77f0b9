"""The two implementations of a tree with one interface, so that the same tests run on both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from kazoo.client import KazooClient

from kbroker.controller.tree.memory import MemoryEnsemble, MemoryTree
from kbroker.controller.tree.zookeeper import ZooKeeperTree

PATIENCE_S = 30
SESSION_TIMEOUT_MS = 6_000
_chroots = count()


class Memory:
    """An ensemble in this process."""

    def __init__(self) -> None:
        self._ensemble = MemoryEnsemble()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[MemoryTree]:
        tree = self._ensemble.connect()
        yield tree
        await tree.close()

    async def expire(self, tree: MemoryTree) -> None:
        tree.expire()


class ZooKeeper:
    """A real ZooKeeper; each instance has its own part of the tree."""

    def __init__(self, address: str) -> None:
        self.connect = f"{address}/tree-{next(_chroots)}/below"

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ZooKeeperTree]:
        tree = await ZooKeeperTree.connect(self.connect, SESSION_TIMEOUT_MS, PATIENCE_S * 1000)
        try:
            yield tree
        finally:
            await tree.close()

    async def expire(self, tree: ZooKeeperTree) -> None:
        """Expire the session through a second client that claims the same id, as ZooKeeper's own tests do."""
        twin = KazooClient(self.connect.partition("/")[0], client_id=tree._client.client_id)
        await tree._loop.run_in_executor(None, twin.start, PATIENCE_S)
        await tree._loop.run_in_executor(None, twin.stop)
        twin.close()


Keeper = Memory | ZooKeeper

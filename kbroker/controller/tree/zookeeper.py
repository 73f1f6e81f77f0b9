"""A tree of znodes on ZooKeeper, through kazoo.

Owns the client, its threads, and the way from them to the event loop: nothing here waits on the loop, and nothing of
the caller's runs on kazoo's threads. Never interprets a znode.

kazoo keeps a watch only as long as its connection, and sets off all when it is lost; then it begins a new session by
itself where the old one has expired. What is asked meanwhile it would keep, and hold the loop once a few hundred wait:
so it is answered by an error here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE

from kbroker.controller.tree.znode import (
    Change,
    Changed,
    Check,
    Create,
    Delete,
    Denied,
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

log = logging.getLogger(__name__)

_RETRY_DELAY_S, _LONGEST_RETRY_DELAY_S = 0.05, 1.0
_STATES = {
    KazooState.CONNECTED: Session.LIVE,
    KazooState.SUSPENDED: Session.UNREACHABLE,
    KazooState.LOST: Session.EXPIRED,
}
_REASONS = {
    exceptions.NoNodeError: Reason.NO_NODE,
    exceptions.NodeExistsError: Reason.NODE_EXISTS,
    exceptions.BadVersionError: Reason.BAD_VERSION,
    exceptions.NotEmptyError: Reason.NOT_EMPTY,
    exceptions.NoChildrenForEphemeralsError: Reason.NO_CHILDREN_FOR_EPHEMERALS,
}
_NOT_AT_FAULT = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""What a refused batch says of the changes before the one at fault, and of those behind it."""


class ZooKeeperTree:
    """A MetadataTree on an ensemble."""

    def __init__(self, client: KazooClient, loop: asyncio.AbstractEventLoop, what: str) -> None:
        self._client = client
        self._loop = loop
        self._what = what
        self._listeners: list[Callable[[Session], None]] = []
        self._session_id = 0

    @classmethod
    async def connect(cls, hosts: str, session_timeout_ms: int, connection_timeout_ms: int) -> ZooKeeperTree:
        """Begin a session; `hosts` is Kafka's zookeeper.connect: HOST:PORT[,HOST:PORT...][/chroot].

        Raises Unreachable if there is none within `connection_timeout_ms`. The chroot is made where it is missing.
        """
        loop = asyncio.get_running_loop()
        addresses, slash, chroot = hosts.partition("/")
        retry = KazooRetry(max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_LONGEST_RETRY_DELAY_S)
        client = KazooClient(addresses, session_timeout_ms / 1000, connection_retry=retry, logger=log)
        tree = cls(client, loop, addresses)
        client.add_listener(tree._state_changed)
        try:
            await loop.run_in_executor(None, client.start, connection_timeout_ms / 1000)
            if slash and chroot:
                await loop.run_in_executor(None, client.ensure_path, f"/{chroot}")
                client.chroot = f"/{chroot.rstrip('/')}"
        except BaseException as error:
            await loop.run_in_executor(None, _end, client)
            if isinstance(error, (KazooTimeoutError, exceptions.KazooException)):
                raise Unreachable(f"ZooKeeper at {addresses} does not answer") from None
            raise
        tree._session_id = client.client_id[0]
        return tree

    @property
    def session_id(self) -> int:
        return self._session_id

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        watch = self._watch(changed)
        try:
            data, stat = await self._done(path, self._connected().get_async(path, watch))
        except Refused:
            if watch is None:
                return None
        else:
            return Znode(data, _stat(stat))
        # What is not there can be watched, too, by another call; it may have come in between.
        if await self._done(path, self._connected().exists_async(path, watch)) is None:
            return None
        return await self.get(path)

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        found: list[str] = await self._done(path, self._connected().get_children_async(path, self._watch(changed)))
        return sorted(found)

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        transaction = self._connected().transaction()
        for change in changes:
            _add(transaction, change)
        results = await self._done(changes[0].path, transaction.commit_async())
        for index, (change, result) in enumerate(zip(changes, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _NOT_AT_FAULT):
                raise _meaning(result, change.path, index)
        return [_made(change, result) for change, result in zip(changes, results, strict=True)]

    def listen(self, listener: Callable[[Session], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        await self._loop.run_in_executor(None, _end, self._client)

    def _connected(self) -> KazooClient:
        if self._client.client_state == KeeperState.CONNECTING:
            raise Unreachable(f"there is no connection to ZooKeeper at {self._what}")
        return self._client

    async def _done(self, path: str, result: Any) -> Any:
        """Wait for what kazoo's thread brings."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def arrived(done: Any) -> None:
            self._on_loop(_settle, future, done)

        result.rawlink(arrived)
        try:
            return await future
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise _meaning(error, path, 0) from None

    def _watch(self, changed: Changed | None) -> Callable[[Any], None] | None:
        if changed is None:
            return None

        def watch(_: Any) -> None:
            self._on_loop(changed)

        return watch

    def _state_changed(self, state: str) -> None:
        """Run by kazoo's thread."""
        session = self._client.client_id
        self._on_loop(self._hear, _STATES[state], session[0] if session else 0)

    def _hear(self, what: Session, session_id: int) -> None:
        if what is Session.LIVE:
            self._session_id = session_id
        for listener in self._listeners:
            listener(what)

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Called on kazoo's threads; the loop may be gone by then."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


def _settle(future: asyncio.Future[Any], done: Any) -> None:
    if future.done():
        return
    if done.exception is not None:
        future.set_exception(done.exception)
    else:
        future.set_result(done.value)


def _end(client: KazooClient) -> None:
    client.stop()
    client.close()


def _add(transaction: Any, change: Change) -> None:
    if isinstance(change, Create):
        transaction.create(change.path, change.data, OPEN_ACL_UNSAFE, change.ephemeral, change.sequential)
    elif isinstance(change, SetData):
        transaction.set_data(change.path, change.data, change.version)
    elif isinstance(change, Delete):
        transaction.delete(change.path, change.version)
    elif isinstance(change, Check):
        transaction.check(change.path, change.version)


def _made(change: Change, result: Any) -> Done:
    if isinstance(change, Create):
        return Done(result)
    return Done(change.path, _stat(result) if isinstance(result, ZnodeStat) else None)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.czxid, stat.version, stat.ephemeralOwner, stat.ctime)


def _meaning(error: BaseException, path: str, index: int) -> Exception:
    """Return what an error of kazoo's is to those above the seam."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return Refused(index, path, reason)
    if isinstance(error, (exceptions.NoAuthError, exceptions.AuthFailedError)):
        return Denied(f"ZooKeeper does not let this broker use {path}")
    if isinstance(error, (exceptions.SessionExpiredError, exceptions.SessionMovedError)):
        return SessionExpired("the session on ZooKeeper is gone")
    return Unreachable(f"ZooKeeper: {type(error).__name__} {error}".rstrip())

"""A tree of znodes on ZooKeeper, through kazoo.

Owns the client, its threads, and the calls from these threads to the event loop. It never blocks the event loop, and
runs the caller's code only on the event loop, never on kazoo's threads. Never interprets a znode.

kazoo fires all watches when it loses the connection. If the old session has expired, kazoo then begins a new session by
itself. Without a connection kazoo would queue requests, and block the event loop when a few hundred wait. Therefore
this module fails requests without a connection, and limits the number of concurrent requests. kazoo's thread ends when
ZooKeeper refuses the credentials. The same happens if a ZooKeeper that is shutting down drops clients during their
login. Therefore another client replaces the ended client.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import KazooRetry

from kbroker.controller.tree.connection import Security, Threads
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
from kbroker.protocol.errors import ApiError, ErrorCode


class Discreet(logging.Filter):
    """Removes credentials and data from the log: at the level DEBUG, kazoo logs all traffic.

    Sizes replace a node's data (/config contains passwords) and the session's password.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        if any(isinstance(each, (Auth, SASL)) for each in arguments):
            return False
        record.args = tuple(map(_without_data, arguments)) if arguments else record.args
        return True


@dataclass(frozen=True, slots=True)
class _Bytes:
    size: int

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


def _without_data(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return _Bytes(len(value))
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_without_data, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_without_data, value))
    return value


log = logging.getLogger(__name__)
_kazoo_log = log.getChild("kazoo")
_kazoo_log.addFilter(Discreet())

_RETRY_DELAY_S, _LONGEST_RETRY_DELAY_S = 0.05, 1.0
_REVIVAL_DELAY_S = 1.0
_MOST_ASKED = 200
"""The maximum number of concurrent requests.

While ZooKeeper is frozen, kazoo's 279th unsent request would block the event loop.
"""
_NO_PATH = re.compile(r"/\.\.?(?:/|$)|//|[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""Paths that ZooKeeper's PathUtils refuses. ZooKeeper's response does not distinguish a refused path from other faults.

PathUtils sees a character beyond 16 bits as two surrogates.
"""
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
_NOT_LET_IN = (exceptions.AuthFailedError, exceptions.SessionClosedRequireSaslError)
"""Errors of the session, not of a path: all pending requests fail with them."""
_NOT_AT_FAULT = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""In a refused batch, the errors of the changes before and after the change at fault."""

_Acl = Callable[[str], list[Any]]


class ZooKeeperTree:
    """A MetadataTree on an ensemble."""

    def __init__(
        self, make: Callable[[Callable[[], None]], KazooClient], loop: asyncio.AbstractEventLoop, hosts: str, acl: _Acl
    ) -> None:
        """Create the tree.

        `make(ended)` creates a client without starting it. The client calls `ended` when one of its threads ends.
        """
        self._make = make
        self._loop = loop
        self._hosts = hosts
        self._acl = acl
        self._listeners: list[Callable[[Session], None]] = []
        self._session_id = 0
        self._turns = asyncio.Semaphore(_MOST_ASKED)
        self._chroot = ""
        self._is_refused = False
        self._is_kept = False
        """Whether to replace a client that has ended.

        True from the acceptance of the first client until `close`.
        """
        self._reviving: asyncio.Task[None] | None = None
        self._ended: KazooClient | None = None
        """The last client whose thread has ended. kazoo's state does not show the end: a new client is CLOSED, too."""
        self._client = self._new_client()

    @classmethod
    async def connect(
        cls, hosts: str, session_timeout_ms: int, connection_timeout_ms: int, security: Security | None = None
    ) -> ZooKeeperTree:
        """Begin a session; `hosts` is Kafka's zookeeper.connect: HOST:PORT[,HOST:PORT...][/chroot].

        Raises Unreachable if no session begins within `connection_timeout_ms`, Denied if ZooKeeper refuses the
        credentials. A missing chroot is created.
        """
        loop = asyncio.get_running_loop()
        addresses, slash, chroot = hosts.partition("/")
        security = security or Security()
        handlers: list[Threads] = []

        def make(ended: Callable[[], None]) -> KazooClient:
            handlers[:] = [Threads(security.tls, ended)]
            retry = KazooRetry(max_tries=-1, delay=_RETRY_DELAY_S, max_delay=_LONGEST_RETRY_DELAY_S)
            return KazooClient(
                addresses,
                session_timeout_ms / 1000,
                handler=handlers[0],
                connection_retry=retry,
                logger=_kazoo_log,
                **security.client_options(),
            )

        tree = cls(make, loop, addresses, security.acl)
        try:
            await loop.run_in_executor(None, tree._begin, connection_timeout_ms / 1000)
            if slash and chroot.strip("/"):
                await loop.run_in_executor(None, tree._enter, f"/{chroot.rstrip('/')}")
        except BaseException as error:
            await tree.close()
            if isinstance(error, (Denied, Unreachable)):
                raise
            if isinstance(error, _NOT_LET_IN):
                raise tree._refusal() from None
            if isinstance(error, exceptions.KazooException):
                raise _meaning(error, "its chroot", 0) from None
            if isinstance(error, KazooTimeoutError):
                if tree._is_refused:
                    raise tree._refusal() from None
                why = handlers[0].trouble
                raise Unreachable(f"ZooKeeper at {addresses} does not answer{why and f' ({why})'}") from None
            raise
        tree._is_kept = True
        tree._check_client()
        return tree

    def _begin(self, patience_s: float) -> None:
        """Start the client, and send a request: its response shows whether ZooKeeper accepts the client.

        Runs on a thread.
        """
        client = self._client
        client.start(patience_s)
        self._session_id = client.client_id[0] if client.client_id else 0
        try:
            client.exists("/")
        except _NOT_LET_IN:
            raise self._refusal() from None
        except exceptions.NoAuthError:
            pass  # the root is denied, but the cluster may use a chroot
        except exceptions.KazooException:
            if self._is_refused:
                raise self._refusal() from None

    def _refusal(self) -> Denied:
        return Denied(f"ZooKeeper at {self._hosts} does not accept the credentials of this broker")

    def _enter(self, chroot: str) -> None:
        """Set the chroot. Runs on a thread."""
        self._client.ensure_path(chroot, self._acl(chroot))
        self._chroot = self._client.chroot = chroot

    def _new_client(self) -> KazooClient:
        def ended() -> None:
            """Report a thread's end. The ending thread of kazoo calls this function.

            Usually all threads end together, but the connection's thread may end alone.
            """
            self._on_loop(self._client_ended, client)

        client = self._make(ended)
        client.chroot = self._chroot
        client.add_listener(lambda state: self._state_changed(client, state))
        return client

    @property
    def session_id(self) -> int:
        return self._session_id

    async def get(self, path: str, changed: Changed | None = None) -> Znode | None:
        _require_path(path)
        watch = self._watch(changed)
        try:
            data, stat = await self._ask(path, lambda client: client.get_async(path, watch))
        except Refused:
            if watch is None:
                return None
        else:
            return Znode(data, _stat(stat))
        # Watch the missing node with another call. The node may have been created in between.
        if await self._ask(path, lambda client: client.exists_async(path, watch)) is None:
            return None
        return await self.get(path)

    async def children(self, path: str, changed: Changed | None = None) -> list[str]:
        _require_path(path)
        watch = self._watch(changed)
        found: list[str] = await self._ask(path, lambda client: client.get_children_async(path, watch))
        return sorted(found)

    async def commit(self, changes: Sequence[Change]) -> list[Done]:
        for change in changes:
            _require_path(change.path)

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            for change in changes:
                self._add(transaction, change)
            return transaction.commit_async()

        results = await self._ask(changes[0].path, send)
        for index, (change, result) in enumerate(zip(changes, results, strict=True)):
            if isinstance(result, Exception) and not isinstance(result, _NOT_AT_FAULT):
                raise _meaning(result, change.path, index)
        return [_made(change, result) for change, result in zip(changes, results, strict=True)]

    def listen(self, listener: Callable[[Session], None]) -> None:
        self._listeners.append(listener)

    async def close(self) -> None:
        self._is_kept = False
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.wait([self._reviving])
        await self._loop.run_in_executor(None, _end, self._client)

    def _connected(self) -> KazooClient:
        if self._client.client_state == KeeperState.CONNECTING:
            raise Unreachable(f"there is no connection to ZooKeeper at {self._hosts}")
        return self._client

    async def _ask(self, path: str, send: Callable[[KazooClient], Any]) -> Any:
        """Send a request in its turn, and wait for the result from kazoo's thread."""
        await self._turns.acquire()
        future: asyncio.Future[Any] = self._loop.create_future()

        def arrived(done: Any) -> None:
            self._on_loop(self._settle, future, done)

        try:
            send(self._connected()).rawlink(arrived)
        except BaseException:
            self._turns.release()
            raise
        try:
            return await future
        except (exceptions.KazooException, KazooTimeoutError) as error:
            raise _meaning(error, path, 0) from None

    def _settle(self, future: asyncio.Future[Any], done: Any) -> None:
        self._turns.release()
        if future.done():
            return
        if done.exception is not None:
            future.set_exception(done.exception)
        else:
            future.set_result(done.value)

    def _add(self, transaction: Any, change: Change) -> None:
        if isinstance(change, Create):
            acl = self._acl(change.path)
            transaction.create(change.path, change.data, acl, change.ephemeral, change.sequential)
        elif isinstance(change, SetData):
            transaction.set_data(change.path, change.data, change.version)
        elif isinstance(change, Delete):
            transaction.delete(change.path, change.version)
        elif isinstance(change, Check):
            transaction.check(change.path, change.version)

    def _watch(self, changed: Changed | None) -> Callable[[Any], None] | None:
        if changed is None:
            return None

        def watch(_: Any) -> None:
            self._on_loop(changed)

        return watch

    def _state_changed(self, client: KazooClient, state: str) -> None:
        """Handle a change of the connection's state; called by kazoo's thread."""
        self._is_refused = client.client_state == KeeperState.AUTH_FAILED
        session = client.client_id
        self._on_loop(self._session_changed, client, _STATES[state], session[0] if session else 0)

    def _session_changed(self, client: KazooClient, session: Session, session_id: int) -> None:
        if client is not self._client:
            return
        if session is Session.LIVE:
            self._session_id = session_id
        for listener in self._listeners:
            listener(session)

    def _client_ended(self, client: KazooClient) -> None:
        if client is self._client:
            self._ended = client
            self._check_client()

    def _check_client(self) -> None:
        if not self._is_kept or self._reviving is not None or self._ended is not self._client:
            return
        if self._is_refused:
            log.error("%s; it tries again", self._refusal())
        else:
            log.error("the client of ZooKeeper at %s has ended; another one takes its place", self._hosts)
        self._reviving = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        """After a pause, replace a client that has ended (ZooKeeperClient.scheduleReinitialize)."""
        try:
            while True:
                await asyncio.sleep(_REVIVAL_DELAY_S)
                try:
                    await self._replace()
                except Exception:  # for example, there are no free descriptors or threads
                    log.exception("there is no client of ZooKeeper at %s yet; it tries again", self._hosts)
                else:
                    break
        finally:
            self._reviving = None
        self._check_client()

    async def _replace(self) -> None:
        ended, self._client = self._client, self._new_client()
        try:
            await self._on_thread(_end, ended)
        except Exception:
            log.exception("a client of ZooKeeper at %s did not end as it should", self._hosts)
        await self._on_thread(self._client.start_async)

    async def _on_thread(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a blocking function on a thread.

        Even a cancelled caller waits for the function: no thread can be stopped.
        """
        done = self._loop.run_in_executor(None, call, *arguments)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, from kazoo's threads. The loop may be closed by then."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


def _end(client: KazooClient) -> None:
    try:
        client.stop()
    finally:
        client.close()


def _made(change: Change, result: Any) -> Done:
    if isinstance(change, Create):
        return Done(result)
    return Done(change.path, _stat(result) if isinstance(result, ZnodeStat) else None)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.czxid, stat.version, stat.ephemeralOwner, stat.ctime, stat.mzxid)


def _require_path(path: str) -> None:
    """Raise ApiError for a path that ZooKeeper refuses: paths contain names from clients."""
    if _NO_PATH.search(path) is not None:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper does not accept the path {path!r}")


def _meaning(error: BaseException, path: str, index: int) -> Exception:
    """Return the exception of this interface for an error of kazoo."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return Refused(index, path, reason)
    if isinstance(error, exceptions.NoAuthError):
        return Denied(f"ZooKeeper does not let this broker use {path}")
    if isinstance(error, exceptions.InvalidACLError):
        return Denied(f"this broker is not logged in to ZooKeeper, so it cannot own {path} (zookeeper.set.acl)")
    if isinstance(error, _NOT_LET_IN):
        return Unreachable("ZooKeeper does not accept the credentials of this broker")
    if isinstance(error, (exceptions.SessionExpiredError, exceptions.SessionMovedError)):
        return SessionExpired("the session on ZooKeeper is gone")
    return Unreachable(f"ZooKeeper: {type(error).__name__} {error}".rstrip())

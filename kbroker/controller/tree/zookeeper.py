"""A tree of znodes on ZooKeeper, through kazoo.

Owns the client, its threads, and the way from them to the event loop: nothing here waits on the loop, and nothing of
the caller's runs on kazoo's threads. Never interprets a znode.

kazoo keeps a watch only as long as its connection, and sets off all when it is lost; then it begins a new session by
itself where the old one has expired. What is asked meanwhile it would keep, and hold the loop once a few hundred wait:
so it is answered by an error here, and while there is a connection only so much is asked at a time. Where its thread
ends, as it does once credentials are refused, another client takes its place: ZooKeeper drops whoever is about to log
in when it stops, which looks the same.
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

from kbroker.controller.tree.security import Security
from kbroker.controller.tree.threads import Threads
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
    """Keeps credentials and data out of the log, into which kazoo writes whatever comes and goes at the level DEBUG.

    Data, as passwords are in that of /config, and a session's own password, are told by their sizes.
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
"""Questions on their way. kazoo's 279th that is not sent yet, as while ZooKeeper is frozen, would hold the loop."""
_NO_PATH = re.compile(r"/\.\.?(?:/|$)|//|[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
"""What ZooKeeper's PathUtils refuses, which an answer does not tell from other faults. It sees a character
beyond 16 bits as two surrogates."""
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
"""What becomes of a session, not an answer about a path: whatever was asked meanwhile is answered so."""
_NOT_AT_FAULT = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""What a refused batch says of the changes before the one at fault, and of those behind it."""

_Acl = Callable[[str], list[Any]]


class ZooKeeperTree:
    """A MetadataTree on an ensemble."""

    def __init__(
        self, make: Callable[[Callable[[], None]], KazooClient], loop: asyncio.AbstractEventLoop, what: str, acl: _Acl
    ) -> None:
        """`make(ended)` makes a client that is not started yet; `ended` is for one of its threads that ends."""
        self._make = make
        self._loop = loop
        self._what = what
        self._acl = acl
        self._listeners: list[Callable[[Session], None]] = []
        self._session_id = 0
        self._turns = asyncio.Semaphore(_MOST_ASKED)
        self._chroot = ""
        self._is_refused = False
        self._is_kept = False
        """Whether a client that has ended is to be replaced: not before the first is let in, nor after `close`."""
        self._reviving: asyncio.Task[None] | None = None
        self._ended: KazooClient | None = None
        """The last client of which a thread has ended. Its state does not tell: a new one's is CLOSED, too."""
        self._client = self._new_client()

    @classmethod
    async def connect(
        cls, hosts: str, session_timeout_ms: int, connection_timeout_ms: int, security: Security | None = None
    ) -> ZooKeeperTree:
        """Begin a session; `hosts` is Kafka's zookeeper.connect: HOST:PORT[,HOST:PORT...][/chroot].

        Raises Unreachable if there is none within `connection_timeout_ms`, Denied if ZooKeeper does not take the
        credentials. The chroot is made where it is missing.
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
        tree._look_after_client()
        return tree

    def _begin(self, patience_s: float) -> None:
        """Run by a thread: start the client, and see whether it is let in, which it is told only when it asks."""
        client = self._client
        client.start(patience_s)
        self._session_id = client.client_id[0] if client.client_id else 0
        try:
            client.exists("/")
        except _NOT_LET_IN:
            raise self._refusal() from None
        except exceptions.NoAuthError:
            pass  # of the root, which need not be the cluster's
        except exceptions.KazooException:
            if self._is_refused:
                raise self._refusal() from None

    def _refusal(self) -> Denied:
        return Denied(f"ZooKeeper at {self._what} does not take the credentials of this broker")

    def _enter(self, chroot: str) -> None:
        """Run by a thread: go on below a path."""
        self._client.ensure_path(chroot, self._acl(chroot))
        self._chroot = self._client.chroot = chroot

    def _new_client(self) -> KazooClient:
        def ended() -> None:
            """Run by a thread of kazoo's at its end; all end together, but the connection's where it gives up."""
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
        # What is not there can be watched, too, by another call; it may have come in between.
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
            raise Unreachable(f"there is no connection to ZooKeeper at {self._what}")
        return self._client

    async def _ask(self, path: str, send: Callable[[KazooClient], Any]) -> Any:
        """Send something in its turn, and wait for what kazoo's thread brings."""
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
        """Run by kazoo's thread."""
        self._is_refused = client.client_state == KeeperState.AUTH_FAILED
        session = client.client_id
        self._on_loop(self._hear, client, _STATES[state], session[0] if session else 0)

    def _hear(self, client: KazooClient, what: Session, session_id: int) -> None:
        if client is not self._client:
            return
        if what is Session.LIVE:
            self._session_id = session_id
        for listener in self._listeners:
            listener(what)

    def _client_ended(self, client: KazooClient) -> None:
        if client is self._client:
            self._ended = client
            self._look_after_client()

    def _look_after_client(self) -> None:
        if not self._is_kept or self._reviving is not None or self._ended is not self._client:
            return
        if self._is_refused:
            log.error("%s; it tries again", self._refusal())
        else:
            log.error("the client of ZooKeeper at %s has ended; another one takes its place", self._what)
        self._reviving = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        """Put another client in place of one that has ended, after a while (ZooKeeperClient.scheduleReinitialize)."""
        try:
            while True:
                await asyncio.sleep(_REVIVAL_DELAY_S)
                try:
                    await self._replace()
                except Exception:  # as where there are no descriptors or threads left
                    log.exception("there is no client of ZooKeeper at %s yet; it tries again", self._what)
                else:
                    break
        finally:
            self._reviving = None
        self._look_after_client()

    async def _replace(self) -> None:
        ended, self._client = self._client, self._new_client()
        try:
            await self._on_thread(_end, ended)
        except Exception:
            log.exception("a client of ZooKeeper at %s did not end as it should", self._what)
        await self._on_thread(self._client.start_async)

    async def _on_thread(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call something that blocks. Who is cancelled meanwhile goes when it is done: no thread can be stopped."""
        done = self._loop.run_in_executor(None, call, *arguments)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Called on kazoo's threads; the loop may be gone by then."""
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
    return Stat(stat.czxid, stat.version, stat.ephemeralOwner, stat.ctime)


def _require_path(path: str) -> None:
    """Raise ApiError for a path that ZooKeeper does not take: names in it come from clients."""
    if _NO_PATH.search(path) is not None:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"ZooKeeper takes no path {path!r}")


def _meaning(error: BaseException, path: str, index: int) -> Exception:
    """Return what an error of kazoo's is to those above the seam."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return Refused(index, path, reason)
    if isinstance(error, exceptions.NoAuthError):
        return Denied(f"ZooKeeper does not let this broker use {path}")
    if isinstance(error, exceptions.InvalidACLError):
        return Denied(f"ZooKeeper knows this broker by no name, so {path} can't be its own (zookeeper.set.acl)")
    if isinstance(error, _NOT_LET_IN):
        return Unreachable("ZooKeeper does not take the credentials of this broker")
    if isinstance(error, (exceptions.SessionExpiredError, exceptions.SessionMovedError)):
        return SessionExpired("the session on ZooKeeper is gone")
    return Unreachable(f"ZooKeeper: {type(error).__name__} {error}".rstrip())

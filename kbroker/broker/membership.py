"""A broker's membership in ZooKeeper: its connection, and its registration, which is renewed after a session expires.

Owns the session, and the reactions to its end and to a new session. Never reads other brokers' nodes: the controller,
the configs and the registration do. (Apache Kafka 3.9: KafkaServer, KafkaController's zk callbacks.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from kbroker.broker.zookeeper_security import zookeeper_security
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller import znodes
from kbroker.controller.member.registration import BrokerRegistration
from kbroker.controller.tree.znode import Create, Denied, MetadataTree, Reason, Refused, Session, Unreachable, ensure
from kbroker.controller.tree.zookeeper import ZooKeeperTree
from kbroker.controller.znodes import CLUSTER_ID, PERSISTENT, ClusterId, Registration, Unreadable
from kbroker.protocol.wire import new_uuid, uuid_text

log = logging.getLogger(__name__)

T = TypeVar("T")
_RETRY_SECONDS = 0.1


class FollowsSession(Protocol):
    """A component that reacts to the end of the session and to a new session: the controller.

    No other component needs these events. This broker continues to lead its partitions until it learns of new leaders,
    and each user of watches is itself notified of a new session.
    """

    def expired(self) -> None:
        """Handle the end of the session and of its ephemeral nodes."""

    def renewed(self) -> None:
        """Handle a new session, in which this broker is registered again."""


async def connect(config: BrokerConfig) -> ZooKeeperTree:
    """Connect to ZooKeeper. Raises ConfigError if ZooKeeper does not answer in time, or denies access."""
    timeout = config.get_int("zookeeper.session.timeout.ms")
    patience = config.get_optional_int("zookeeper.connection.timeout.ms") or timeout
    security = zookeeper_security(config)
    try:
        return await ZooKeeperTree.connect(config.get_str("zookeeper.connect"), timeout, patience, security)
    except Unreachable as error:
        raise ConfigError(f"{error} within {patience} ms") from None
    except Denied as denied:
        raise ConfigError(str(denied)) from None


async def prepare(tree: MetadataTree) -> str:
    """Create the znodes that every broker creates, if they are missing. Return the cluster's id, which may be new.

    Raises ConfigError if the cluster id is unreadable. Also raises Unreachable and Denied.
    """
    for path in PERSISTENT:
        await _ensure_all(tree, path)
    while True:
        node = await tree.get(CLUSTER_ID)
        if node is not None:
            try:
                return znodes.read(CLUSTER_ID, node.data, ClusterId.decode).id
            except Unreadable as error:
                raise ConfigError(str(error)) from None
        await _ensure_all(tree, CLUSTER_ID.rpartition("/")[0])
        try:
            await tree.commit([Create(CLUSTER_ID, ClusterId(uuid_text(new_uuid())).encode())])
        except Refused as refused:
            if refused.reason is not Reason.NODE_EXISTS:  # NODE_EXISTS: another broker was first
                raise


async def _ensure_all(tree: MetadataTree, path: str) -> None:
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        each = "/" + "/".join(parts[:depth])
        if await tree.get(each) is None:
            await ensure(tree, each)


async def steadily(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request to ZooKeeper until it is answered, even after lost connections."""
    while True:
        try:
            return await ask()
        except Unreachable:
            await asyncio.sleep(_RETRY_SECONDS)


class Membership:
    """Keeps one broker registered. Calls `fail(text)` when the broker can no longer be registered."""

    def __init__(
        self,
        tree: MetadataTree,
        registration: BrokerRegistration,
        controller: FollowsSession,
        fail: Callable[[str], None],
    ) -> None:
        self._tree = tree
        self._registration = registration
        self._controller = controller
        self._fail = fail
        self.away = asyncio.Event()
        """An event that is set as long as ZooKeeper is unreachable."""
        self._registered: Registration | None = None
        self._session = 0
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self, registration: Registration) -> None:
        """Register, and stay registered. Raises ConfigError. Waits without limit while ZooKeeper is unreachable."""
        self._session = self._tree.session_id
        await steadily(partial(self._registration.register, registration))
        self._registered = registration
        self._tree.listen(self._session_changed)
        if self._tree.session_id != self._session:
            self._session_changed(Session.LIVE)

    def close(self) -> None:
        """Ignore the end of the session from now on."""
        self._registered = None
        if self._renewing is not None:
            self._renewing.cancel()

    def _session_changed(self, session: Session) -> None:
        if self._registered is None:
            return
        if session is Session.LIVE:
            self.away.clear()
        else:
            self.away.set()
        if session is Session.UNREACHABLE:
            log.warning("ZooKeeper is not reachable")
        if session is Session.EXPIRED:
            log.warning("the session on ZooKeeper has expired; this broker registers again in a new session")
            self._controller.expired()
        if session is Session.LIVE and self._tree.session_id != self._session and self._renewing is None:
            self._session = self._tree.session_id
            self._renewing = asyncio.get_running_loop().create_task(self._renew(self._registered))

    async def _renew(self, registration: Registration) -> None:
        try:
            self._session = await self._registration.renew(registration)
            self._controller.renewed()
        except (ConfigError, Denied, Refused) as error:
            self._fail(f"this broker cannot be registered again: {error}")
        finally:
            self._renewing = None

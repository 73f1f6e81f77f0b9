"""A broker's own znode. While it exists, the broker is live for the controller and the other brokers.

Owns /brokers/ids/N: its creation at a start and with every new session, and the possible conflicts. Never reads other
brokers' nodes except to refuse a duplicate address. (Apache Kafka 3.9: KafkaZkClient.registerBroker.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from kbroker.config.model import ConfigError
from kbroker.controller import znodes
from kbroker.controller.tree.znode import Create, Delete, Denied, MetadataTree, Reason, Refused, SetData, Unreachable
from kbroker.controller.znodes import BROKER_IDS, Registration, Unreadable

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_LEAST_PATIENCE_MS = 10_000
"""The minimum of `patience_ms`, in ms.

ZooKeeper's shortest session timeout (twice its tick time) may exceed the requested timeout.
"""


def patience_ms(session_timeout_ms: int) -> int:
    """Return the time in ms for which a start waits until an earlier process's session with this id has ended."""
    return max(2 * session_timeout_ms, _LEAST_PATIENCE_MS)


class BrokerRegistration:
    """The registration of one broker. `epoch` is -1 while the broker is not registered."""

    def __init__(self, tree: MetadataTree, node_id: int, patience_ms: int) -> None:
        """Create the registration; `patience_ms` limits the wait for the end of an earlier process's session."""
        self._tree = tree
        self._node_id = node_id
        self._path = f"{BROKER_IDS}/{node_id}"
        self._patience_s = patience_ms / 1000
        self._own_sessions: set[int] = set()
        self.epoch = -1
        """The number of the transaction that created the znode. A later registration has a higher number."""

    async def register(self, registration: Registration) -> None:
        """Create the znode. Raises Unreachable, or ConfigError if the id or the address belongs to another broker.

        The session of a dead, earlier process of this broker might not have expired yet. This method waits for its
        expiry: no other process can have the port that this process has bound. Apache Kafka's broker fails immediately.
        """
        await self._check_address(registration)
        data = registration.encode()
        while True:
            self._own_sessions.add(self._tree.session_id)
            try:
                done = await self._tree.commit([Create(self._path, ephemeral=True), SetData(self._path, data, 0)])
            except Refused as refused:
                if refused.reason is not Reason.NODE_EXISTS:
                    raise
            else:
                stat = done[1].stat
                assert stat is not None
                self.epoch = stat.created
                log.info("broker %d is registered, epoch %d", self._node_id, self.epoch)
                return
            owner = await self._owner()
            if owner == self._tree.session_id:
                return
            if owner is not None and not await self._ended(owner):
                text = f"broker.id {self._node_id} is taken: another broker of the cluster is registered with it"
                raise ConfigError(text)

    async def renew(self, registration: Registration) -> int:
        """Register in the current session or, if this session expires, in a later session. Return the session.

        Retry after most errors. Raises ConfigError, Denied and Refused, which are permanent.
        """
        while True:
            session = self._tree.session_id
            try:
                await self.register(registration)
            except Unreachable:
                await asyncio.sleep(_RETRY_SECONDS)
            except (ConfigError, Denied, Refused):
                raise
            except Exception:
                log.exception("registering again failed, and is tried again")
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                if session == self._tree.session_id:
                    return session

    async def _check_address(self, registration: Registration) -> None:
        own = {(each.host, each.port) for each in registration.endpoints}
        for name in await self._tree.children(BROKER_IDS):
            node = await self._tree.get(f"{BROKER_IDS}/{name}")
            if name == str(self._node_id) or node is None:
                continue
            try:
                other = znodes.read(f"{BROKER_IDS}/{name}", node.data, Registration.decode)
            except Unreadable as error:
                log.warning("a broker is ignored: %s", error)
                continue
            taken = own & {(each.host, each.port) for each in other.endpoints}
            if taken:
                host, port = min(taken)
                raise ConfigError(f"{host}:{port} is the address of broker {name}, too: each broker needs its own")

    async def _owner(self) -> int | None:
        """Return the session that owns the znode.

        Return None if there is no such session, or after removing the znode of this broker's earlier session.
        """
        node = await self._tree.get(self._path)
        if node is None:
            return None
        if node.stat.owner == self._tree.session_id:
            self.epoch = node.stat.created
        elif node.stat.owner in self._own_sessions:
            with contextlib.suppress(Refused):
                await self._tree.commit([Delete(self._path)])
            return None
        return node.stat.owner

    async def _ended(self, owner: int) -> bool:
        """Wait for the end of a session; return whether it ended in time.

        Only ZooKeeper's answer after the wait counts, because this process may have been frozen for most of the wait.
        """
        log.info("broker %d is still registered by an earlier session: waiting for its end", self._node_id)
        deleted = asyncio.Event()
        node = await self._tree.get(self._path, deleted.set)
        if node is None or node.stat.owner != owner:
            return True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await deleted.wait()
        node = await self._tree.get(self._path)
        return node is None or node.stat.owner != owner

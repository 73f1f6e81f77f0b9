"""A broker's own znode, by which the controller and the other brokers know that it lives.

Owns /brokers/ids/N: its making at a start and with every new session, and what that may run into. Never looks at other
brokers but to refuse an address that is taken. (Apache Kafka 3.9: KafkaZkClient.registerBroker.)
"""

from __future__ import annotations

import asyncio
import logging

from kbroker.config.model import ConfigError
from kbroker.controller import znodes
from kbroker.controller.tree.znode import Create, Delete, MetadataTree, Reason, Refused, SetData
from kbroker.controller.znodes import BROKER_IDS, Registration, Unreadable

log = logging.getLogger(__name__)


class BrokerRegistration:
    """The registration of one broker. `epoch` is -1 while there is none."""

    def __init__(self, tree: MetadataTree, node_id: int, session_timeout_ms: int) -> None:
        self._tree = tree
        self._node_id = node_id
        self._path = f"{BROKER_IDS}/{node_id}"
        self._patience_s = 2 * session_timeout_ms / 1000
        self._own_sessions: set[int] = set()
        self.epoch = -1
        """The number of the transaction that made the znode: a later registration has a higher one."""

    async def register(self, registration: Registration) -> None:
        """Make the znode. Raises ConfigError where the id or the address is another broker's, Unreachable.

        An earlier process of this broker may be dead without its session having expired: that is waited for, as nobody
        else can have the port that this one has bound. Apache Kafka's broker gives up at once.
        """
        await self._check_address(registration)
        data = registration.encode()
        deadline = asyncio.get_running_loop().time() + self._patience_s
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
            if await self._is_mine():
                return
            await self._wait_for_its_end(deadline)

    async def _check_address(self, registration: Registration) -> None:
        own = {(each.host, each.port) for each in registration.endpoints}
        for name in await self._tree.children(BROKER_IDS):
            node = await self._tree.get(f"{BROKER_IDS}/{name}")
            if name == str(self._node_id) or node is None:
                continue
            try:
                other = znodes.read(f"{BROKER_IDS}/{name}", node.data, Registration.decode)
            except Unreadable as error:
                log.warning("a broker is passed over: %s", error)
                continue
            taken = own & {(each.host, each.port) for each in other.endpoints}
            if taken:
                host, port = min(taken)
                raise ConfigError(f"{host}:{port} is the address of broker {name}, too: each broker has its own")

    async def _is_mine(self) -> bool:
        """Look whose znode it is that stands already; remove one that an earlier session of this process has left."""
        node = await self._tree.get(self._path)
        if node is None:
            return False
        if node.stat.owner == self._tree.session_id:
            self.epoch = node.stat.created
            return True
        if node.stat.owner in self._own_sessions:
            try:
                await self._tree.commit([Delete(self._path)])
            except Refused as refused:
                if refused.reason is not Reason.NO_NODE:
                    raise
        return False

    async def _wait_for_its_end(self, deadline: float) -> None:
        gone = asyncio.Event()
        node = await self._tree.get(self._path, gone.set)
        if node is None:
            return
        log.info("broker %d is registered by an earlier session, whose end is waited for", self._node_id)
        try:
            async with asyncio.timeout_at(deadline):
                await gone.wait()
        except TimeoutError:
            raise ConfigError(
                f"broker.id {self._node_id} is taken: another broker of the cluster is registered with it"
            ) from None

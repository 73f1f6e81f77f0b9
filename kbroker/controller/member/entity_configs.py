"""The dynamic configs of topics, brokers, users and others in ZooKeeper, kept current through notifications.

Owns the configs read from /config. Never knows the meaning of a config. (Apache Kafka 3.9: ZkConfigManager.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from kbroker.clock import Clock
from kbroker.controller import znodes
from kbroker.controller.member.followed_nodes import AT_ONCE, TRIES, Notifications, Rereading
from kbroker.controller.pacing import all_of
from kbroker.controller.tree.znode import (
    Change,
    Check,
    Create,
    MetadataTree,
    Refused,
    SetData,
    Unreachable,
)
from kbroker.controller.znodes import CONFIG, CONFIG_CHANGE, CONFIG_CHANGES, DEFAULT_ENTITY, Unreadable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.quota.configured import CLIENTS, KINDS, entity_at
from kbroker.security.sasl.scram_credential import USERS

log = logging.getLogger(__name__)

GROUPS = "groups"
"""A kind of entity that only kbroker has.

Brokers write configs of groups only in clusters without Java brokers (check_keeps_groups): Apache Kafka 3.9 does not
know this kind.
"""
FOLLOWED = ("topics", "brokers", GROUPS, *KINDS)
Configs = Mapping[str, str]
Revise = Callable[[Configs], dict[str, str]]
"""Returns the new configs for the old configs. Raises ApiError."""
Listener = Callable[[str, str, Configs], None]


class EntityConfigs:
    """All configs of topics, brokers, groups, users, clients and ips by name; "" has the defaults of a kind.

    Groups, users, clients and addresses are stored under the names of their nodes; a user with a client id is stored
    under USER/clients/CLIENT.
    """

    def __init__(self, tree: MetadataTree, clock: Clock) -> None:
        self._tree = tree
        self._known: dict[str, dict[str, Configs]] = {kind: {} for kind in FOLLOWED}
        self._unread: dict[str, None] = {}  # topics whose configs could not be read so far
        self._listener: Listener = lambda _kind, _name, _configs: None
        self._rereading = Rereading(tree, self._process, "configs")
        self._notifications = Notifications(tree, clock, CONFIG_CHANGES, _named)

    def of(self, kind: str, name: str) -> Configs:
        """Return an entity's known configs; empty if it has none."""
        return self._known[kind].get(name, {})

    def all(self, kind: str) -> Mapping[str, Configs]:
        """Return the known configs of all entities of a kind."""
        return self._known[kind]

    async def load(self) -> None:
        """Read all configs, and remember the last notification. Raises Unreachable, Unreadable."""
        await self._notifications.skip()
        for kind in FOLLOWED:
            names = await self._tree.children(f"{CONFIG}/{kind}")
            await self._read_all(kind, names)
            if kind == USERS:
                await self._read_all(kind, await self._with_clients(names))

    async def _with_clients(self, users: Sequence[str]) -> list[str]:
        """Return USER/clients/CLIENT for all client ids with configs of these users."""

        async def of(user: str) -> list[str]:
            try:
                clients = await self._tree.children(f"{CONFIG}/{USERS}/{user}/{CLIENTS}")
            except Refused:  # the user has no configs of client ids
                return []
            return [f"{user}/{CLIENTS}/{client}" for client in clients]

        return [each for found in await all_of(users, of, AT_ONCE) for each in found]

    async def read_topics(self, names: Iterable[str]) -> None:
        """Read the configs of topics that may be new. If ZooKeeper is unreachable, read them when it is back."""
        names = list(names)
        try:
            await self._read_all("topics", names)
        except Unreachable:
            self._unread.update(dict.fromkeys(names))

    def follow(self, listener: Listener) -> None:
        """Call `listener(kind, name, configs)` for each entity that was read again after a change."""
        self._listener = listener
        self._rereading.begin()

    def reread(self) -> None:
        """Read the changes now, or after the read in progress."""
        self._rereading.reread()

    def close(self) -> None:
        """Stop following."""
        self._rereading.close()

    async def _process(self) -> None:
        """Read the entities that could not be read so far, then process the new notifications."""
        for name in list(self._unread):
            await self._read("topics", name)
            self._unread.pop(name, None)
            self._listener("topics", name, self.of("topics", name))
        await self._notifications.process(self.reread, self._reread)

    async def _reread(self, changed: Iterable[str]) -> None:
        for path in changed:
            kind, _, segment = path.partition("/")
            if _is_entity(kind, segment):
                await self._read(kind, segment)
                self._listener(kind, _name(segment), self.of(kind, _name(segment)))

    async def _read_all(self, kind: str, segments: Iterable[str]) -> None:
        await all_of(segments, partial(self._read, kind), AT_ONCE)

    async def _read(self, kind: str, segment: str) -> None:
        path = f"{CONFIG}/{kind}/{segment}"
        node = await self._tree.get(path)
        configs: Configs = {}
        if node is not None and node.data:
            try:
                configs = znodes.read(path, node.data, znodes.decode_configs)
            except Unreadable as error:
                # Keep the known configs: a default must not replace a configured value.
                log.error("%s; its last known configs are kept", error)
                return
        if configs:
            self._known[kind][_name(segment)] = configs
        else:
            self._known[kind].pop(_name(segment), None)

    async def change(self, kind: str, name: str, revise: Revise, controller_version: int | None = None) -> None:
        """Store the result of `revise` for an entity's configs, notify all brokers, and update this broker's copy.

        The current configs are read first. The new configs are written only if the current configs have not changed
        meanwhile; otherwise `revise` is called again. Raises the exceptions of `revise`, ApiError after too many
        attempts, and, if `controller_version` is given, Refused if the controller has changed.
        """
        path = f"{CONFIG}/{kind}/{name or DEFAULT_ENTITY}"
        above = _above(kind, name)
        for _ in range(TRIES):
            node = await self._tree.get(path)
            old = znodes.read(path, node.data, znodes.decode_configs) if node is not None and node.data else {}
            configs = revise(old)
            if configs == old == self.of(kind, name):
                return
            # Notify even if nothing changes: other brokers might not know the current configs yet. One transaction
            # writes the change and its notification.
            writes: list[Change] = [Create(CONFIG_CHANGE, _notification(kind, name), sequential=True)]
            if configs != old:
                data = znodes.encode_configs(configs)
                write = Create(path, data) if node is None else SetData(path, data, node.stat.version)
                writes = [write, *writes]
                if controller_version is not None:
                    writes.insert(0, Check(znodes.CONTROLLER, controller_version))
                if node is None:
                    writes = [*await self._missing(above), *writes]
            try:
                await self._tree.commit(writes)
            except Refused as refused:
                if refused.path not in (path, *above):
                    raise
            else:
                break
        else:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Others change the configs of {kind} {name} all the time.")
        await self._read(kind, name or DEFAULT_ENTITY)
        self._listener(kind, name, self.of(kind, name))

    async def _missing(self, above: Iterable[str]) -> list[Create]:
        return [Create(each) for each in above if await self._tree.get(each) is None]


def _is_entity(kind: str, segment: str) -> bool:
    """Whether this broker follows the entity of a notification: a named entity, or a client id of a user."""
    if "/" in segment:
        return kind == USERS and entity_at(kind, segment) is not None
    return kind in FOLLOWED and bool(segment)


def _above(kind: str, name: str) -> list[str]:
    """Return the nodes between a kind's node and an entity's node."""
    parts = name.split("/")[:-1]
    return [f"{CONFIG}/{kind}/{'/'.join(parts[:depth])}" for depth in range(1, len(parts) + 1)]


def _notification(kind: str, name: str) -> bytes:
    return znodes.encode_config_change(f"{kind}/{name or DEFAULT_ENTITY}")


def _named(path: str, data: bytes) -> str | None:
    """Return KIND/ENTITY in a notification; None if the notification cannot be read."""
    try:
        return znodes.read(path.rpartition("/")[2], data, znodes.decode_config_change)
    except Unreadable as error:
        log.warning("a change of configs is ignored: %s", error)
        return None


def _name(segment: str) -> str:
    return "" if segment == DEFAULT_ENTITY else segment

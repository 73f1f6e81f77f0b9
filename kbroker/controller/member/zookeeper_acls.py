"""Access control lists in ZooKeeper, kept current through notifications.

Owns the content of /kafka-acl and /kafka-acl-extended. Never evaluates an ACL. (Apache Kafka 3.9: AclAuthorizer.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.clock import Clock
from kbroker.controller import znodes
from kbroker.controller.acl_nodes import (
    CHANGE,
    CHANGES,
    ROOTS,
    TYPES,
    acl_path,
    decode_change,
    decode_entries,
    encode_change,
    encode_entries,
)
from kbroker.controller.member.followed_nodes import AT_ONCE, Notifications, NotifiedValues
from kbroker.controller.tree.znode import Create, MetadataTree, ensure
from kbroker.controller.znodes import Unreadable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.authorizer.acls import Acls, Entry, Pattern, PatternType

log = logging.getLogger(__name__)

Entries = frozenset[Entry]


class ZooKeeperAcls(NotifiedValues[Pattern, Entries]):
    """All ACLs of a cluster that this broker knows, by pattern."""

    def __init__(self, tree: MetadataTree, clock: Clock) -> None:
        notifications = [Notifications(tree, clock, path, partial(_named, kind)) for kind, path in CHANGES.items()]
        super().__init__(tree, "ACLs", frozenset(), notifications)
        self._listener: Callable[[Acls], None] = lambda _acls: None
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._taken: dict[Pattern, Entries] = {}
        """The ACLs read or written in this turn of the event loop."""
        self._is_loaded = False
        self.known: dict[Pattern, Entries] = {}
        """All ACLs. When there is a listener, a change replaces this value instead of modifying it."""

    async def load(self) -> None:
        """Create missing znodes, read all ACLs, and remember the last notifications.

        Raises Unreachable, and Unreadable: a broker that skipped an unreadable ACL might allow a denied action.
        """
        for pattern_type, root in ROOTS.items():
            for path in (*_upwards(root), *(f"{root}/{name}" for name in TYPES), CHANGES[pattern_type]):
                await ensure(self._tree, path)
        for each in self._notifications:
            await each.skip()
        found: dict[Pattern, Entries] = {}
        for pattern_type, root in ROOTS.items():
            for name, resource_type in TYPES.items():
                segments = await self._tree.children(f"{root}/{name}")
                found |= await self._read_all(Pattern(resource_type, each, pattern_type) for each in segments)
        self.known = {pattern: entries for pattern, entries in found.items() if entries}
        self._is_loaded = True

    def follow(self, listener: Callable[[Acls], None]) -> None:
        """Call `listener` with all ACLs after each change."""
        self._listener = listener
        self._rereading.begin()

    async def add(self, pattern: Pattern, more: Entries) -> ApiError | None:
        """Add ACLs with `change`. Return the error if the request is invalid."""
        if "/" in pattern.name:
            return ApiError(ErrorCode.INVALID_REQUEST, "Failed to create ACL")  # a znode cannot have this name
        await self._change(pattern, lambda old: old | more)
        return None

    async def remove(self, pattern: Pattern, removed: Entries) -> ApiError | None:
        """Remove ACLs with `change`."""
        await self._change(pattern, lambda old: old - removed)
        return None

    async def _change(self, pattern: Pattern, revise: Callable[[Entries], Entries]) -> None:
        async with self._turns:
            await self.change(pattern, revise)
            await asyncio.sleep(0)  # the change takes effect at the end of this turn of the event loop

    def _path(self, key: Pattern) -> str:
        return acl_path(key)

    def _decoded(self, path: str, data: bytes) -> Entries:
        return znodes.read(path, data, decode_entries) if data else frozenset()

    def _encoded(self, value: Entries) -> Any:
        return encode_entries(value)

    def _notification(self, key: Pattern) -> Create:
        return Create(f"{CHANGES[key.pattern_type]}/{CHANGE}", encode_change(key), sequential=True)

    def _unreadable(self, key: Pattern, error: Unreadable, found: dict[Pattern, Entries]) -> None:  # noqa: ARG002
        if not self._is_loaded:
            raise error
        # Keep the known ACLs: an unreadable znode must neither grant nor revoke a right.
        log.error("%s; its last known ACLs are kept", error)

    def _busy(self, key: Pattern) -> str:
        return f"Failed to update ACLs for {key}: others are faster."

    def _take(self, changed: dict[Pattern, Entries]) -> None:
        """Update the ACLs of some patterns; call the listener once for all updates in one turn of the event loop."""
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._publish)
        self._taken.update(changed)

    def _publish(self) -> None:
        taken, self._taken = self._taken, {}
        known = None
        for pattern, entries in taken.items():
            if self.known.get(pattern, frozenset()) != entries:
                known = dict(self.known) if known is None else known
                known[pattern] = entries
                if not entries:
                    del known[pattern]
        if known is not None:
            self.known = known
            self._listener(known)


def _named(kind: PatternType, path: str, data: bytes) -> Pattern | None:
    try:
        return decode_change(kind, data)
    except ValueError as error:
        log.warning("a change of ACLs is ignored: %s cannot be read: %s", path, error)
        return None


def _upwards(path: str) -> list[str]:
    """Return all parents of a path, and then the path itself."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]

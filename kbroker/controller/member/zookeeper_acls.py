"""Access control lists in ZooKeeper, followed through their notifications.

Owns the content of /kafka-acl and /kafka-acl-extended, and which notifications have been processed. Never evaluates an
ACL. (Apache Kafka 3.9: AclAuthorizer, ZkNodeChangeNotificationListener.)

A change is written only if nobody has written meanwhile, together with its notification. A notification names a
pattern, whose ACLs are then read; after a lost connection a broker processes the missed ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence

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
from kbroker.controller.member.rereading import Rereading
from kbroker.controller.tree.znode import Change, Create, Delete, MetadataTree, Reason, Refused, SetData, Unreachable
from kbroker.controller.znodes import Unreadable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.authorizer.acls import Acls, Entry, Pattern, PatternType

log = logging.getLogger(__name__)

AT_ONCE = 50
"""Concurrent reads, and changes."""
EXPIRED_MS = 15 * 60 * 1000
"""A notification of this age has been processed by all live brokers, and is removed."""
TRIES = 100
"""Attempts of a change while others are faster: each of them has made a change by then."""
Entries = frozenset[Entry]


class ZooKeeperAcls:
    """All ACLs of a cluster, as known to this broker."""

    def __init__(self, tree: MetadataTree, clock: Clock) -> None:
        self._tree = tree
        self._clock = clock
        self._last = dict.fromkeys(CHANGES, -1)
        self._listener: Callable[[Acls], None] = lambda _acls: None
        self._rereading = Rereading(tree, self._hear, "ACLs")
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._taken: dict[Pattern, Entries] = {}
        """The ACLs read or written in this turn of the loop."""
        self._changed_here: set[Pattern] = set()
        """Patterns whose ACLs this broker has changed since the beginning of its last read."""
        self.known: dict[Pattern, Entries] = {}
        """All ACLs: a value that is replaced, never changed, once there is a listener."""

    async def load(self) -> None:
        """Create missing znodes, read all ACLs, and remember the last notifications.

        Raises Unreachable, and Unreadable: without an unreadable ACL, a denied action might be allowed.
        """
        for pattern_type, root in ROOTS.items():
            changes = CHANGES[pattern_type]
            for path in (*_upwards(root), *(f"{root}/{name}" for name in TYPES), changes):
                await self._ensure(path)
            self._last[pattern_type] = max(map(_number, await self._tree.children(changes)), default=-1)
        found: dict[Pattern, Entries] = {}
        for pattern_type, root in ROOTS.items():
            for name, resource_type in TYPES.items():
                segments = await self._tree.children(f"{root}/{name}")
                patterns = (Pattern(resource_type, each, pattern_type) for each in segments)
                await self._read_all(patterns, found, at_start=True)
        self.known = {pattern: entries for pattern, entries in found.items() if entries}

    def follow(self, listener: Callable[[Acls], None]) -> None:
        """Call `listener` with all ACLs after each change."""
        self._listener = listener
        self._rereading.begin()

    def close(self) -> None:
        """Stop following."""
        self._rereading.close()

    async def add(self, pattern: Pattern, more: Entries) -> ApiError | None:
        """Add ACLs with `change`. Return the error if the request is at fault."""
        if "/" in pattern.name:
            return ApiError(ErrorCode.INVALID_REQUEST, "Failed to create ACL")  # the name could have no znode
        async with self._turns:
            await self.change(pattern, lambda old: old | more)
        return None

    async def remove(self, pattern: Pattern, gone: Entries) -> ApiError | None:
        """Remove ACLs with `change`."""
        async with self._turns:
            await self.change(pattern, lambda old: old - gone)
        return None

    async def change(self, pattern: Pattern, revise: Callable[[Entries], Entries]) -> None:
        """Store the result of `revise` for a pattern's ACLs, notify all brokers, and update this one.

        Raises ApiError if others are faster every time; Unreachable, Denied, Unreadable.
        """
        path = acl_path(pattern)
        for _ in range(TRIES):
            node = await self._tree.get(path)
            old = frozenset[Entry]() if node is None else _decoded(path, node.data)
            new = revise(old)
            if new != old:
                data = json.dumps(encode_entries(new), separators=(",", ":"), ensure_ascii=False).encode()
                write: Change
                if node is None:
                    write = Create(path, data)
                elif new:
                    write = SetData(path, data, node.stat.version)
                else:
                    write = Delete(path, node.stat.version)
                notice = Create(f"{CHANGES[pattern.pattern_type]}/{CHANGE}", encode_change(pattern), sequential=True)
                try:
                    await self._tree.commit([write, notice])
                except Refused as refused:
                    if refused.path != path:
                        raise
                    continue
            self._changed_here.add(pattern)
            self._take({pattern: new})
            await asyncio.sleep(0)  # it takes effect at the end of this turn of the loop
            return
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Failed to update ACLs for {pattern}: others are faster.")

    async def _ensure(self, path: str) -> None:
        try:
            await self._tree.commit([Create(path)])
        except Refused as refused:
            if refused.reason is not Reason.NODE_EXISTS:
                raise

    async def _hear(self) -> None:
        """Process the new notifications; if ZooKeeper is lost meanwhile, the same ones again."""
        last = dict(self._last)
        try:
            await self._hear_new()
        except Unreachable:
            self._last = last
            raise

    async def _hear_new(self) -> None:
        """Process the new notifications, and set watches for the next."""
        for pattern_type, changes in CHANGES.items():
            names = await self._tree.children(changes, self._rereading.look)
            changed: dict[Pattern, None] = {}
            for name in sorted(names, key=_number):
                if _number(name) <= self._last[pattern_type]:
                    continue
                node = await self._tree.get(f"{changes}/{name}")
                if node is not None:
                    try:
                        changed[decode_change(pattern_type, node.data)] = None
                    except ValueError as error:
                        log.warning("a change of ACLs is passed over: %s/%s cannot be read: %s", changes, name, error)
                self._last[pattern_type] = _number(name)
            if changed:
                found: dict[Pattern, Entries] = {}
                self._changed_here.clear()
                await self._read_all(changed, found)
                for pattern in self._changed_here:  # the ACLs read may be older; the change's own notification follows
                    found.pop(pattern, None)
                self._take(found)
                await self._remove_old(pattern_type, names)

    async def _read_all(
        self, patterns: Iterable[Pattern], found: dict[Pattern, Entries], *, at_start: bool = False
    ) -> None:
        left = list(patterns)
        while left:
            piece, left = left[:AT_ONCE], left[AT_ONCE:]
            await asyncio.gather(*(self._read(pattern, found, at_start=at_start) for pattern in piece))

    async def _read(self, pattern: Pattern, found: dict[Pattern, Entries], *, at_start: bool) -> None:
        path = acl_path(pattern)
        node = await self._tree.get(path)
        try:
            found[pattern] = frozenset() if node is None else _decoded(path, node.data)
        except Unreadable as error:
            if at_start:
                raise
            # Keep the known ones: an unreadable znode must neither grant nor revoke a right.
            log.error("%s; what was known of it stays", error)

    def _take(self, changed: dict[Pattern, Entries]) -> None:
        """Update the ACLs of some patterns, and call the listener once for all updates in one turn of the loop."""
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

    async def _remove_old(self, pattern_type: PatternType, names: Sequence[str]) -> None:
        """Remove notifications that all brokers have processed; of many only the oldest, the others later."""
        for name in sorted(names, key=_number)[:AT_ONCE]:
            path = f"{CHANGES[pattern_type]}/{name}"
            node = await self._tree.get(path)
            if node is None:
                continue
            if not 0 <= node.stat.created_ms < self._clock.now_ms() - EXPIRED_MS:
                break
            with contextlib.suppress(Refused):  # another broker was first
                await self._tree.commit([Delete(path)])


def _decoded(path: str, data: bytes) -> Entries:
    return znodes.read(path, data, decode_entries) if data else frozenset()


def _upwards(path: str) -> list[str]:
    """Return a path's parents and itself."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _number(name: str) -> int:
    """Return the number at the end of a notification's name, -1 without one."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1

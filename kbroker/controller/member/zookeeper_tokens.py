"""Delegation tokens in ZooKeeper, followed through their notifications.

Owns the content of /delegation_token, and which notifications have been processed. Never decides about a token. (Apache
Kafka 3.9: DelegationTokenManagerZk, ZkNodeChangeNotificationListener.)

A change is written only if nobody has written meanwhile, together with its notification. A notification names a token,
which is then read; after a lost connection a broker processes the missed ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence

from kbroker.clock import Clock
from kbroker.controller import znodes
from kbroker.controller.cluster_metadata import ReviseToken
from kbroker.controller.member.rereading import Rereading
from kbroker.controller.token_nodes import CHANGE, CHANGES, TOKENS, decode_token, encode_token, token_path
from kbroker.controller.tree.znode import Change, Create, Delete, MetadataTree, Reason, Refused, SetData, Unreachable
from kbroker.controller.znodes import Unreadable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import Token, TokenSettings

log = logging.getLogger(__name__)

AT_ONCE = 50
"""Concurrent reads."""
EXPIRED_MS = 15 * 60 * 1000
"""A notification of this age has been processed by all live brokers, and is removed."""
TRIES = 100
"""Attempts of a change while others are faster: each of them has made a change by then."""


class ZooKeeperTokens:
    """All delegation tokens of a cluster, as known to this broker."""

    def __init__(self, tree: MetadataTree, settings: TokenSettings, clock: Clock) -> None:
        self._tree = tree
        self._settings = settings
        self._clock = clock
        self._last = -1
        self._listener: Callable[[Tokens], None] = lambda _tokens: None
        self._rereading = Rereading(tree, self._hear, "delegation tokens")
        self._changed_here: set[str] = set()
        """Tokens that this broker has changed since the beginning of its last read."""
        self.known = NO_TOKENS

    async def load(self) -> None:
        """Create missing znodes, read all tokens, and remember the last notification. Raises Unreachable.

        An unreadable token counts as missing.
        """
        for path in ("/delegation_token", CHANGES, TOKENS):
            try:
                await self._tree.commit([Create(path)])
            except Refused as refused:
                if refused.reason is not Reason.NODE_EXISTS:
                    raise
        self._last = max(map(_number, await self._tree.children(CHANGES)), default=-1)
        found: dict[str, Token | None] = {}
        await self._read_all(await self._tree.children(TOKENS), found)
        self.known = Tokens.of(token for token in found.values() if token is not None)

    def follow(self, listener: Callable[[Tokens], None]) -> None:
        """Call `listener` with all tokens after each change."""
        self._listener = listener
        self._rereading.begin()

    def close(self) -> None:
        """Stop following."""
        self._rereading.close()

    async def change(self, token_id: str, revise: ReviseToken) -> Token | None:
        """Store the result of `revise` for a token, notify all brokers, and update this one; return it.

        Raises the exceptions of `revise`, ApiError if others are faster every time; Unreachable, Denied, Unreadable.
        """
        path = token_path(token_id)
        for _ in range(TRIES):
            node = await self._tree.get(path)
            old = None if node is None else self._decoded(path, node.data)
            new = revise(old)
            if new != old:
                write: Change
                if new is None:
                    assert node is not None
                    write = Delete(path, node.stat.version)
                else:
                    data = json.dumps(encode_token(new.info), separators=(",", ":"), ensure_ascii=False).encode()
                    write = Create(path, data) if node is None else SetData(path, data, node.stat.version)
                try:
                    await self._tree.commit([write, Create(CHANGE, token_id.encode(), sequential=True)])
                except Refused as refused:
                    if refused.path != path:
                        raise
                    continue
            self._changed_here.add(token_id)
            self._take({token_id: new})
            return new
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "others change this delegation token all the time")

    async def _hear(self) -> None:
        """Process the new notifications; if ZooKeeper is lost meanwhile, the same ones again."""
        last = self._last
        try:
            await self._hear_new()
        except Unreachable:
            self._last = last
            raise

    async def _hear_new(self) -> None:
        """Process the new notifications, and set a watch for the next."""
        names = await self._tree.children(CHANGES, self._rereading.look)
        changed: dict[str, None] = {}
        for name in sorted(names, key=_number):
            if _number(name) <= self._last:
                continue
            node = await self._tree.get(f"{CHANGES}/{name}")
            if node is not None:
                token_id = node.data.decode("utf-8", "replace")
                if token_id and "/" not in token_id:
                    changed[token_id] = None
            self._last = _number(name)
        if changed:
            found: dict[str, Token | None] = {}
            self._changed_here.clear()
            await self._read_all(changed, found)
            for token_id in self._changed_here:  # the token read may be older; the change's own notification follows
                found.pop(token_id, None)
            self._take(found)
            await self._remove_old(names)

    async def _read_all(self, token_ids: Iterable[str], found: dict[str, Token | None]) -> None:
        left = list(token_ids)
        while left:
            piece, left = left[:AT_ONCE], left[AT_ONCE:]
            await asyncio.gather(*(self._read(token_id, found) for token_id in piece))

    async def _read(self, token_id: str, found: dict[str, Token | None]) -> None:
        path = token_path(token_id)
        node = await self._tree.get(path)
        try:
            found[token_id] = None if node is None else self._decoded(path, node.data)
        except Unreadable as error:
            log.error("%s; nobody can log in by it", error)
            found[token_id] = None

    def _decoded(self, path: str, data: bytes) -> Token | None:
        return self._settings.token(znodes.read(path, data, decode_token)) if data else None

    def _take(self, changed: dict[str, Token | None]) -> None:
        """Update some tokens, and call the listener."""
        known = self.known
        for token_id, token in changed.items():
            if known.get(token_id) != token:
                known = known.without(token_id) if token is None else known.with_token(token)
        if known is not self.known:
            self.known = known
            self._listener(known)

    async def _remove_old(self, names: Sequence[str]) -> None:
        """Remove notifications that all brokers have processed; of many only the oldest, the others later."""
        for name in sorted(names, key=_number)[:AT_ONCE]:
            path = f"{CHANGES}/{name}"
            node = await self._tree.get(path)
            if node is None:
                continue
            if not 0 <= node.stat.created_ms < self._clock.now_ms() - EXPIRED_MS:
                break
            with contextlib.suppress(Refused):  # another broker was first
                await self._tree.commit([Delete(path)])


def _number(name: str) -> int:
    """Return the number at the end of a notification's name, -1 without one."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1

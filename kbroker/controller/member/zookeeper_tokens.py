"""Delegation tokens in ZooKeeper, kept current through notifications.

Owns the content of /delegation_token. Never decides about a token. (Apache Kafka 3.9: DelegationTokenManagerZk.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kbroker.clock import Clock
from kbroker.controller import znodes
from kbroker.controller.member.followed_nodes import Notifications, NotifiedValues
from kbroker.controller.token_nodes import CHANGE, CHANGES, TOKENS, decode_token, encode_token, token_path
from kbroker.controller.tree.znode import Create, MetadataTree, ensure
from kbroker.controller.znodes import Unreadable
from kbroker.security.tokens.known import NO_TOKENS, Tokens
from kbroker.security.tokens.token import Token, TokenSettings

log = logging.getLogger(__name__)


class ZooKeeperTokens(NotifiedValues[str, Token | None]):
    """All delegation tokens of a cluster that this broker knows, by id."""

    def __init__(self, tree: MetadataTree, settings: TokenSettings, clock: Clock) -> None:
        super().__init__(tree, "delegation tokens", None, [Notifications(tree, clock, CHANGES, _named)])
        self._settings = settings
        self._listener: Callable[[Tokens], None] = lambda _tokens: None
        self.known = NO_TOKENS

    async def load(self) -> None:
        """Create missing znodes, read all tokens, and remember the last notification. Raises Unreachable.

        An unreadable token counts as missing.
        """
        for path in ("/delegation_token", CHANGES, TOKENS):
            await ensure(self._tree, path)
        for each in self._notifications:
            await each.skip()
        found = await self._read_all(await self._tree.children(TOKENS))
        self.known = Tokens.of(token for token in found.values() if token is not None)

    def follow(self, listener: Callable[[Tokens], None]) -> None:
        """Call `listener` with all tokens after each change."""
        self._listener = listener
        self._rereading.begin()

    def _path(self, key: str) -> str:
        return token_path(key)

    def _decoded(self, path: str, data: bytes) -> Token | None:
        return self._settings.token(znodes.read(path, data, decode_token)) if data else None

    def _encoded(self, value: Token | None) -> Any:
        assert value is not None
        return encode_token(value.info)

    def _notification(self, key: str) -> Create:
        return Create(CHANGE, key.encode(), sequential=True)

    def _unreadable(self, key: str, error: Unreadable, found: dict[str, Token | None]) -> None:
        log.error("%s; no client can log in with it", error)
        found[key] = None

    def _busy(self, key: str) -> str:  # noqa: ARG002 - an id is no one's business
        return "others change this delegation token all the time"

    def _take(self, changed: dict[str, Token | None]) -> None:
        """Update some tokens, and call the listener."""
        known = self.known
        for token_id, token in changed.items():
            if known.get(token_id) != token:
                known = known.without(token_id) if token is None else known.with_token(token)
        if known is not self.known:
            self.known = known
            self._listener(known)


def _named(_path: str, data: bytes) -> str | None:
    token_id = data.decode("utf-8", "replace")
    return token_id if token_id and "/" not in token_id else None

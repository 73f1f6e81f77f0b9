"""The removal of expired delegation tokens, every `delegation.token.expiry.check.interval.ms`.

Owns the timing. Nobody can log in with an expired token, however long it stays. In a cluster the controller's broker
removes them. Never decides whether a token is valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from kbroker.clock import Clock
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.long_work import in_slices, turn
from kbroker.protocol.errors import ApiError
from kbroker.security.principal import printable
from kbroker.security.tokens.token import Token, TokenSettings

log = logging.getLogger(__name__)


class ExpiredTokens:
    """Removes expired tokens from `metadata`; `is_mine` returns whether this broker is responsible."""

    def __init__(
        self, metadata: ClusterMetadata, settings: TokenSettings, clock: Clock, is_mine: Callable[[], bool]
    ) -> None:
        self._metadata = metadata
        self._interval_ms = settings.check_interval_ms
        self._clock = clock
        self._is_mine = is_mine
        self._next_ms = clock.monotonic_ms() + self._interval_ms
        self._removing: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Begin to remove expired tokens, if it is time."""
        now = self._clock.monotonic_ms()
        if now < self._next_ms or self._removing is not None:
            return
        self._next_ms = now + self._interval_ms
        if self._is_mine():
            self._removing = asyncio.get_running_loop().create_task(self._remove())

    def close(self) -> None:
        """Stop removing tokens."""
        if self._removing is not None:
            self._removing.cancel()

    async def _remove(self) -> None:
        try:
            await in_slices(self._remove_all())
        except (ApiError, OSError) as error:
            log.warning("expired delegation tokens are not all removed: %s", error)
        except Exception:
            log.exception("removing expired delegation tokens failed")
        finally:
            self._removing = None

    async def _remove_all(self) -> None:
        for token in self._metadata.state.tokens:
            if token.has_ended(self._clock.now_ms()):
                await self._remove_one(token.info.token_id)
            await turn

    async def _remove_one(self, token_id: str) -> None:
        def revise(token: Token | None) -> Token | None:
            """Check again: the token may have been renewed or removed by now."""
            return None if token is None or token.has_ended(self._clock.now_ms()) else token

        known = self._metadata.state.tokens.get(token_id)
        if await self._metadata.change_token(token_id, revise) is None and known is not None:
            log.info("delegation token %s of %s has expired", token_id, printable(str(known.info.owner)))

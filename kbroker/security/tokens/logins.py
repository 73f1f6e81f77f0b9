"""The SCRAM credentials of delegation tokens: a client logs in with a token's id and HMAC.

Owns how they are derived from a token, and a cache of recent ones: deriving one takes some ms. Never stores one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.security.sasl.scram import TokenLogin
from kbroker.security.sasl.scram_credential import LEAST_ITERATIONS, ScramCredential, from_password, new_salt
from kbroker.security.tokens.known import Tokens

REMEMBERED: Final = 1024
"""Cached credentials; if there are more, the oldest is dropped and derived again when needed."""


class TokenLogins:
    """Finds tokens for SCRAM, among the current ones from `tokens`."""

    def __init__(self, tokens: Callable[[], Tokens], now_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._made: dict[tuple[bytes, str], ScramCredential] = {}

    def __call__(self, token_id: str, mechanism: str) -> TokenLogin | None:
        """Return the login data of a token; None if it does not exist, or has expired."""
        token = self._tokens().get(token_id)
        if token is None or token.has_ended(self._now_ms()):
            return None
        key = (token.hmac, mechanism)
        credential = self._made.get(key)
        if credential is None:
            credential = from_password(mechanism, token.password, new_salt(), LEAST_ITERATIONS)
            if len(self._made) >= REMEMBERED:
                del self._made[next(iter(self._made))]
            self._made[key] = credential
        return TokenLogin(credential, token.info.owner.name, token.info.expires_ms)

"""What the requests about delegation tokens have in common.

Owns who may ask at all, and where they are refused whole. Never decides what becomes of a token (security/tokens/).
"""

from __future__ import annotations

from typing import Final

from kbroker.handlers.registry import RequestContext
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.principal import ANONYMOUS
from kbroker.security.tokens.token import Token, TokenSettings

NO_TIME: Final = -1
"""What stands for a time where a request has not come so far."""


def is_allowed(ctx: RequestContext) -> bool:
    """Tell whether whoever is connected may ask for tokens: somebody who has authenticated, and not by a token."""
    protocol = ctx.services.config.listeners.protocols.get(ctx.listener)
    if ctx.principal.by_token or protocol == "PLAINTEXT":
        return False
    return protocol != "SSL" or ctx.principal != ANONYMOUS


def settings_of(ctx: RequestContext) -> TokenSettings:
    """Return what is configured of tokens; raises DELEGATION_TOKEN_AUTH_DISABLED where there is no secret."""
    settings = ctx.services.tokens
    if settings is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return settings


def token_id_of(ctx: RequestContext, hmac: bytes) -> str:
    """Return the id of the token that an HMAC is of. Raises DELEGATION_TOKEN_NOT_FOUND."""
    return existing(ctx.services.controller.state.tokens.by_hmac(hmac)).info.token_id


def existing(token: Token | None) -> Token:
    """Return a token that there is. Raises DELEGATION_TOKEN_NOT_FOUND."""
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token

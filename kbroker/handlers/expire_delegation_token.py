"""ExpireDelegationToken (key 40), versions 1-2: a token ends after another while, or at once.

Behaviour: who has logged in by it goes on until the session ends.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.token_requests import NO_TIME, existing, is_allowed, settings_of, token_id_of
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.delegation_tokens import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from kbroker.security.tokens.decisions import ended

log = logging.getLogger(__name__)


@handles(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, "1-2")
def expire_delegation_token(
    ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> Divided[ExpireDelegationTokenResponse | Awaitable[ExpireDelegationTokenResponse]]:
    """Let a token end, for its owner or who may renew it."""
    if not is_allowed(ctx):
        return ExpireDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME)
    settings_of(ctx)
    who, now_ms = ctx.principal, ctx.services.clock.now_ms()
    token_id = token_id_of(ctx, bytes(request.hmac))
    token = yield from ctx.services.controller.change_token(
        token_id, lambda old: ended(existing(old), who, request.expiry_time_period_ms, now_ms)
    )
    ends_ms = now_ms if token is None else token.info.expires_ms
    log.info("delegation token %s %s", token_id, "is removed" if token is None else "ends at another time")
    return in_effect(ctx, ExpireDelegationTokenResponse(ErrorCode.NONE, ends_ms))

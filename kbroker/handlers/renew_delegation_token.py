"""RenewDelegationToken (key 39), versions 1-2: a token stays valid for another while, as long as it may."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.token_requests import NO_TIME, existing, is_allowed, settings_of, token_id_of
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.delegation_tokens import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kbroker.security.tokens.decisions import renewed

log = logging.getLogger(__name__)


@handles(RenewDelegationTokenRequest, RenewDelegationTokenResponse, "1-2")
def renew_delegation_token(
    ctx: RequestContext, request: RenewDelegationTokenRequest
) -> Divided[RenewDelegationTokenResponse | Awaitable[RenewDelegationTokenResponse]]:
    """Renew a token for its owner, or who may renew it."""
    if not is_allowed(ctx):
        return RenewDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME)
    settings, who, now_ms = settings_of(ctx), ctx.principal, ctx.services.clock.now_ms()
    token_id = token_id_of(ctx, bytes(request.hmac))
    token = yield from ctx.services.controller.change_token(
        token_id, lambda old: renewed(settings, existing(old), who, request.renew_period_ms, now_ms)
    )
    log.info("delegation token %s is renewed", token_id)
    return in_effect(ctx, RenewDelegationTokenResponse(ErrorCode.NONE, existing(token).info.expires_ms))

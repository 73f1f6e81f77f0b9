"""CreateDelegationToken (key 38), versions 1-3: a token for who asks or, since version 3, for another owner.

Behaviour: whoever has shown a token gets no other. The answer has the token's HMAC, and comes once the token is in
effect on this broker.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.token_requests import NO_TIME, existing, is_allowed, settings_of
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from kbroker.security.principal import ANONYMOUS, USER, Principal, printable
from kbroker.security.tokens.decisions import MOST_CHARACTERS, new_token
from kbroker.security.tokens.token import Token

log = logging.getLogger(__name__)


def owner_of(ctx: RequestContext, request: CreateDelegationTokenRequest) -> Principal:
    """Return for whom a token is asked.

    Raises ApiError for names that are too long, and for one without a type, which Kafka does not await.
    """
    if not request.owner_principal_name:
        return ctx.principal
    kind, name = request.owner_principal_type, request.owner_principal_name
    if kind is None:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if len(kind) + len(name) > MOST_CHARACTERS:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    return Principal(kind, name)


def refused(
    owner: Principal, requester: Principal, code: ErrorCode | int, time_ms: int = NO_TIME
) -> CreateDelegationTokenResponse:
    """Return the answer that says why there is no token."""
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )


def _on_error(_request: CreateDelegationTokenRequest, code: int, _text: str | None) -> CreateDelegationTokenResponse:
    return refused(ANONYMOUS, ANONYMOUS, code)


@handles(CreateDelegationTokenRequest, CreateDelegationTokenResponse, "1-3", _on_error)
def create_delegation_token(
    ctx: RequestContext, request: CreateDelegationTokenRequest
) -> Divided[CreateDelegationTokenResponse | Awaitable[CreateDelegationTokenResponse]]:
    """Make a token, unless there is a reason not to."""
    owner, requester = owner_of(ctx, request), ctx.principal
    if not is_allowed(ctx):
        return refused(owner, requester, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    renewers = []
    for each in request.renewers:
        if each.principal_type != USER:
            return refused(owner, requester, ErrorCode.INVALID_PRINCIPAL_TYPE)
        renewers.append(Principal(each.principal_type, each.principal_name))
        yield
    try:
        token = yield from _made(ctx, owner, renewers, request.max_lifetime_ms)
    except ApiError as error:
        # As Kafka's controller answers, which leaves the times at zero.
        return refused(owner, requester, error.code, 0)
    info = token.info
    log.info("delegation token %s is made for %s", info.token_id, printable(str(owner)))
    answer = refused(owner, requester, ErrorCode.NONE)
    answer.issue_timestamp_ms = info.issued_ms
    answer.expiry_timestamp_ms = info.expires_ms
    answer.max_timestamp_ms = info.max_ms
    answer.token_id = info.token_id
    answer.hmac = token.hmac
    return in_effect(ctx, answer)


def _made(ctx: RequestContext, owner: Principal, renewers: list[Principal], lifetime_ms: int) -> Divided[Token]:
    controller, settings = ctx.services.controller, settings_of(ctx)
    known = controller.decided.tokens
    now_ms = ctx.services.clock.now_ms()
    token = new_token(settings, known, owner, ctx.principal, renewers, lifetime_ms, now_ms)
    return existing((yield from controller.change_token(token.info.token_id, lambda _none: token)))

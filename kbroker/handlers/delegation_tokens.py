"""The APIs of delegation tokens (KIP-48).

Owns the check whether a client may send these requests at all, and the errors of complete requests. Never changes a
token: security/tokens/ does.

CreateDelegationToken (key 38), versions 1-3: create a token for the client or, since version 3, for another owner.

Behaviour: a client that has authenticated with a token cannot create another. The response has the token's HMAC, and is
sent once the token is in effect on this broker.

RenewDelegationToken (key 39), versions 1-2: extend a token's validity, up to the token's maximum.

ExpireDelegationToken (key 40), versions 1-2: change when a token expires, or expire it immediately.

Behaviour: a client that has authenticated with the token stays connected until its session ends.

DescribeDelegationToken (key 41), versions 1-3: return tokens with their HMACs to clients that may see them.

Behaviour: owners, requesters and renewers see their own tokens; if an authorizer is configured, other clients see the
tokens that it allows. An empty list of owners returns no tokens, and a null list returns all tokens that the client may
see.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.access import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kbroker.security.principal import ANONYMOUS, USER, Principal, printable
from kbroker.security.tokens.decisions import MOST_CHARACTERS, ended, new_token, renewed
from kbroker.security.tokens.token import Token, TokenSettings

log = logging.getLogger(__name__)

NO_TIME: Final = -1
"""The value of times in the response to a refused request."""


def is_allowed(ctx: RequestContext) -> bool:
    """Whether the client may send requests about tokens: it must have authenticated, but not with a token."""
    protocol = ctx.services.config.listeners.protocols.get(ctx.listener)
    if ctx.principal.by_token or protocol == "PLAINTEXT":
        return False
    return protocol != "SSL" or ctx.principal != ANONYMOUS


def settings_of(ctx: RequestContext) -> TokenSettings:
    """Return the settings of tokens. Raises DELEGATION_TOKEN_AUTH_DISABLED if no secret is configured."""
    settings = ctx.services.tokens
    if settings is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return settings


def token_id_of(ctx: RequestContext, hmac: bytes) -> str:
    """Return the id of the token that has this HMAC. Raises DELEGATION_TOKEN_NOT_FOUND."""
    return existing(ctx.services.controller.state.tokens.by_hmac(hmac)).info.token_id


def existing(token: Token | None) -> Token:
    """Return `token`. Raises DELEGATION_TOKEN_NOT_FOUND if it is None."""
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def owner_of(ctx: RequestContext, request: CreateDelegationTokenRequest) -> Principal:
    """Return the owner of a requested token.

    Raises ApiError for names that are too long, and for a name without a type, which Kafka does not expect.
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
    """Return the response that refuses a token."""
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
async def create_delegation_token(
    ctx: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Create a token, or refuse the request."""
    owner, requester = owner_of(ctx, request), ctx.principal
    if not is_allowed(ctx):
        return refused(owner, requester, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    renewers = []
    for each in request.renewers:
        if each.principal_type != USER:
            return refused(owner, requester, ErrorCode.INVALID_PRINCIPAL_TYPE)
        renewers.append(Principal(each.principal_type, each.principal_name))
        await turn
    try:
        token = await _made(ctx, owner, renewers, request.max_lifetime_ms)
    except ApiError as error:
        # The times are zero, as in Kafka's controller.
        return refused(owner, requester, error.code, 0)
    info = token.info
    log.info("delegation token %s is made for %s", info.token_id, printable(str(owner)))
    answer = refused(owner, requester, ErrorCode.NONE)
    answer.issue_timestamp_ms = info.issued_ms
    answer.expiry_timestamp_ms = info.expires_ms
    answer.max_timestamp_ms = info.max_ms
    answer.token_id = info.token_id
    answer.hmac = token.hmac
    return await ctx.services.in_effect(answer)


async def _made(ctx: RequestContext, owner: Principal, renewers: list[Principal], lifetime_ms: int) -> Token:
    controller, settings = ctx.services.controller, settings_of(ctx)
    known = controller.decided.tokens
    now_ms = ctx.services.clock.now_ms()
    token = new_token(settings, known, owner, ctx.principal, renewers, lifetime_ms, now_ms)
    return existing(await controller.change_token(token.info.token_id, lambda _none: token))


@handles(RenewDelegationTokenRequest, RenewDelegationTokenResponse, "1-2")
async def renew_delegation_token(
    ctx: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Renew a token for its owner or a renewer."""
    if not is_allowed(ctx):
        return RenewDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME)
    settings, principal, now_ms = settings_of(ctx), ctx.principal, ctx.services.clock.now_ms()
    token_id = token_id_of(ctx, bytes(request.hmac))
    token = await ctx.services.controller.change_token(
        token_id, lambda old: renewed(settings, existing(old), principal, request.renew_period_ms, now_ms)
    )
    log.info("delegation token %s is renewed", token_id)
    return await ctx.services.in_effect(RenewDelegationTokenResponse(ErrorCode.NONE, existing(token).info.expires_ms))


@handles(ExpireDelegationTokenRequest, ExpireDelegationTokenResponse, "1-2")
async def expire_delegation_token(
    ctx: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Expire a token for its owner or a renewer."""
    if not is_allowed(ctx):
        return ExpireDelegationTokenResponse(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, NO_TIME)
    settings_of(ctx)
    principal, now_ms = ctx.principal, ctx.services.clock.now_ms()
    token_id = token_id_of(ctx, bytes(request.hmac))
    token = await ctx.services.controller.change_token(
        token_id, lambda old: ended(existing(old), principal, request.expiry_time_period_ms, now_ms)
    )
    ends_ms = now_ms if token is None else token.info.expires_ms
    log.info("delegation token %s %s", token_id, "is removed" if token is None else "ends at another time")
    return await ctx.services.in_effect(ExpireDelegationTokenResponse(ErrorCode.NONE, ends_ms))


@handles(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, "1-3")
async def describe_delegation_token(
    ctx: RequestContext,
    request: DescribeDelegationTokenRequest,
    may_see: Callable[[Token], bool] = lambda _token: True,
) -> DescribeDelegationTokenResponse:
    """Describe tokens; `may_see` is called for tokens that are not the client's own."""
    if not is_allowed(ctx):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    settings_of(ctx)
    owners: set[Principal] | None = None if request.owners is None else set()
    for each in request.owners or ():
        assert owners is not None
        owners.add(Principal(each.principal_type, each.principal_name))
        await turn
    own = frozenset((ctx.principal,))
    found: list[DescribedDelegationToken] = []
    if owners is None or owners:
        for token in ctx.services.controller.state.tokens:
            if (owners is None or token.is_of(owners)) and (token.is_of(own) or may_see(token)):
                found.append(_described(token))
            await turn
    return DescribeDelegationTokenResponse(tokens=found)


def _described(token: Token) -> DescribedDelegationToken:
    info = token.info
    return DescribedDelegationToken(
        principal_type=info.owner.kind,
        principal_name=info.owner.name,
        token_requester_principal_type=info.requester.kind,
        token_requester_principal_name=info.requester.name,
        issue_timestamp=info.issued_ms,
        expiry_timestamp=info.expires_ms,
        max_timestamp=info.max_ms,
        token_id=info.token_id,
        hmac=token.hmac,
        renewers=[DescribedDelegationTokenRenewer(each.kind, each.name) for each in info.renewers],
    )

"""DescribeDelegationToken (key 41), versions 1-3: tokens with their HMACs, for those who may see them.

Behaviour: owners, requesters and renewers see their own; where an authorizer is configured, others those that it lets
them. An empty list of owners is answered by none, and none at all by all that may be seen.
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.token_requests import is_allowed, settings_of
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.delegation_tokens import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from kbroker.security.principal import Principal
from kbroker.security.tokens.token import Token


@handles(DescribeDelegationTokenRequest, DescribeDelegationTokenResponse, "1-3")
def describe_delegation_token(
    ctx: RequestContext,
    request: DescribeDelegationTokenRequest,
    may_see: Callable[[Token], bool] = lambda _token: True,
) -> Divided[DescribeDelegationTokenResponse]:
    """Describe tokens; `may_see` is asked of those that are not who asks's own."""
    if not is_allowed(ctx):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    settings_of(ctx)
    owners: set[Principal] | None = None if request.owners is None else set()
    for each in request.owners or ():
        assert owners is not None
        owners.add(Principal(each.principal_type, each.principal_name))
        yield
    own = frozenset((ctx.principal,))
    found: list[DescribedDelegationToken] = []
    if owners is None or owners:
        for token in ctx.services.controller.state.tokens:
            if (owners is None or token.is_of(owners)) and (token.is_of(own) or may_see(token)):
                found.append(_described(token))
            yield
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

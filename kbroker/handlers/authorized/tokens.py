"""Guards of the APIs about delegation tokens.

Owns the rights to create a token for another owner, and to see tokens of others (KIP-48, KIP-373).
"""

from __future__ import annotations

from typing import Any

from kbroker.handlers.authorized.guard import rights_of
from kbroker.handlers.delegation_tokens import describe_delegation_token as describe_handler
from kbroker.handlers.delegation_tokens import is_allowed, owner_of, refused
from kbroker.handlers.registry import Handler, RequestContext
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import CreateDelegationTokenRequest, DescribeDelegationTokenRequest
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.tokens.token import Token


def create_delegation_token(handler: Handler, _response: type[Any]) -> Handler:
    """Require User:CreateTokens for a token of another owner."""

    def guarded(ctx: RequestContext, request: CreateDelegationTokenRequest) -> Any:
        owner = owner_of(ctx, request)
        is_anothers = owner != ctx.principal and is_allowed(ctx)  # the handler's own refusal comes first
        if is_anothers and not rights_of(ctx).may(Operation.CREATE_TOKENS, ResourceType.USER, str(owner)):
            return refused(owner, ctx.principal, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
        return handler(ctx, request)

    return guarded


def describe_delegation_token(_handler: Handler, _response: type[Any]) -> Handler:
    """Require DelegationToken:Describe or User:DescribeTokens for tokens of others."""

    def guarded(ctx: RequestContext, request: DescribeDelegationTokenRequest) -> Any:
        rights = rights_of(ctx)

        def may_see(token: Token) -> bool:
            of_token = (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.info.token_id)
            of_owner = (Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.info.owner))
            return rights.may(*of_token, tell=False) or rights.may(*of_owner, tell=False)

        return describe_handler(ctx, request, may_see=may_see)  # type: ignore[call-arg]

    return guarded

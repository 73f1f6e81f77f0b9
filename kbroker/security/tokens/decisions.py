"""The operations on a delegation token: create, renew, expire (Apache Kafka: DelegationTokenControlManager).

Owns the permissions for these operations, the lifetime of tokens, and the errors. Never stores anything and never reads
a clock. Times are in ms since 1970, periods in ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import new_uuid, uuid_text
from kbroker.security.principal import USER, Principal
from kbroker.security.tokens.known import Tokens
from kbroker.security.tokens.token import Token, TokenInformation, TokenSettings

MOST_OF_ONE: Final = 10_000
"""The maximum number of valid tokens of one requester."""
MOST_CHARACTERS: Final = 4096
"""The maximum total length in characters of all names in a token."""
MOST_RENEWERS: Final = 256
_LATEST: Final = (1 << 63) - 1


def new_token(
    settings: TokenSettings,
    known: Tokens,
    owner: Principal,
    requester: Principal,
    renewers: Sequence[Principal],
    max_lifetime_ms: int,
    now_ms: int,
) -> Token:
    """Return a new token, with the maximum lifetime if `max_lifetime_ms` is not positive. Raises ApiError."""
    if len(renewers) > MOST_RENEWERS:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    if sum(len(each.kind) + len(each.name) for each in (owner, requester, *renewers)) > MOST_CHARACTERS:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    if any(each.kind != USER for each in renewers):
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    if known.asked_for_by(requester) >= MOST_OF_ONE:
        raise ApiError(ErrorCode.POLICY_VIOLATION)
    lifetime_ms = settings.max_lifetime_ms
    if max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, max_lifetime_ms)
    last_ms = _after(now_ms, lifetime_ms)
    expires_ms = min(last_ms, _after(now_ms, settings.expiry_time_ms))
    token_id = uuid_text(new_uuid())
    info = TokenInformation(token_id, owner, requester, tuple(renewers), now_ms, last_ms, expires_ms)
    return settings.token(info)


def renewed(settings: TokenSettings, token: Token, principal: Principal, period_ms: int, now_ms: int) -> Token:
    """Return a token with a later expiry: the latest possible expiry if `period_ms` is not positive.

    Raises ApiError.
    """
    if token.has_ended(now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if not _may_renew(token, principal):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    period_ms = min(settings.expiry_time_ms, period_ms) if period_ms > 0 else settings.expiry_time_ms
    return _until(token, _after(now_ms, period_ms))


def ended(token: Token, principal: Principal, period_ms: int, now_ms: int) -> Token | None:
    """Return a token with a new expiry, or None if `period_ms` is negative and so ends the token immediately.

    Raises ApiError.
    """
    if not _may_renew(token, principal):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if period_ms < 0:
        return None
    if token.has_ended(now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    return _until(token, _after(now_ms, period_ms))


def _may_renew(token: Token, principal: Principal) -> bool:
    return principal == token.info.owner or principal in token.info.renewers


def _until(token: Token, expires_ms: int) -> Token:
    return replace(token, info=replace(token.info, expires_ms=min(token.info.max_ms, expires_ms)))


def _after(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, _LATEST)

"""Delegation tokens: listing, creating, renewing and expiring them.

Never prints anything; above all, it never prints an HMAC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any
from kbroker.protocol.messages.access import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kbroker.security.principal import Principal

_Answer = TypeVar("_Answer")


def create_token(
    admin: Any, owner: Principal | None, renewers: Sequence[Principal], life_ms: int
) -> CreateDelegationTokenResponse:
    """Create a token; by default the caller owns it.

    A lifetime of -1 ms means the broker's maximum. Raises AdminError.
    """
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner.kind if owner else None,
        owner_principal_name=owner.name if owner else None,
        renewers=[CreatableRenewers(each.kind, each.name) for each in renewers],
        max_lifetime_ms=life_ms,
    )
    return _request(admin, request, CreateDelegationTokenResponse, "cannot create a token")


def renew_token(admin: Any, token_id: str, period_ms: int) -> int:
    """Renew a token for a period from now on (-1: the broker's default); return its new expiry. Raises AdminError."""
    request = RenewDelegationTokenRequest(_hmac_of(admin, token_id), period_ms)
    return _request(admin, request, RenewDelegationTokenResponse, f"cannot renew {token_id}").expiry_timestamp_ms


def expire_token(admin: Any, token_id: str, period_ms: int = -1) -> int:
    """Expire a token immediately, or after a period from now on; return its expiry time. Raises AdminError."""
    request = ExpireDelegationTokenRequest(_hmac_of(admin, token_id), period_ms)
    return _request(admin, request, ExpireDelegationTokenResponse, f"cannot expire {token_id}").expiry_timestamp_ms


def _hmac_of(admin: Any, token_id: str) -> bytes:
    """Return a token's HMAC, which is as good as a password. Raises AdminError if the token does not exist."""
    for each in described_tokens(admin):
        if each.token_id == token_id:
            return bytes(each.hmac)
    raise AdminError(f"there is no token {token_id}, or none that you may see")


def described_tokens(admin: Any, owners: Sequence[Principal] = ()) -> list[DescribedDelegationToken]:
    """Return the tokens of some or all owners, oldest first; leave out tokens that the caller may not read.

    Raises AdminError.
    """
    wanted = [DescribeDelegationTokenOwner(each.kind, each.name) for each in owners] or None
    request = DescribeDelegationTokenRequest(owners=wanted)
    found = _request(admin, request, DescribeDelegationTokenResponse, "cannot list tokens").tokens
    return sorted(found, key=lambda each: (each.issue_timestamp, each.token_id))


def _request(admin: Any, request: Any, answer: type[_Answer], failure: str) -> _Answer:
    """Send a request about tokens. Raises AdminError; its text begins with `failure`."""
    found: Any = ask_any(admin, request, answer)
    if found is None:
        raise AdminError(f"{failure}: this cluster serves no delegation tokens")
    check_code(found.error_code, failure)
    result: _Answer = found
    return result

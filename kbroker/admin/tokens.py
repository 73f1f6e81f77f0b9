"""Delegation tokens: the requests about them. Never prints, least of all an HMAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any
from kbroker.protocol.messages.access import (
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)

_Answer = TypeVar("_Answer")


def hmac_of(admin: Any, token_id: str) -> bytes:
    """Return a token's HMAC, which is as good as a password; raises AdminError if the token does not exist."""
    for each in described_tokens(admin, None):
        if each.token_id == token_id:
            return bytes(each.hmac)
    raise AdminError(f"there is no token {token_id}, or none that you may see")


def described_tokens(
    admin: Any, owners: list[DescribeDelegationTokenOwner] | None
) -> Sequence[DescribedDelegationToken]:
    """Return the tokens of owners, or of all owners, that the caller may see; raises AdminError."""
    request = DescribeDelegationTokenRequest(owners=owners)
    return ask_of_tokens(admin, request, DescribeDelegationTokenResponse, "cannot list tokens").tokens


def ask_of_tokens(admin: Any, request: Any, answer: type[_Answer], failure: str) -> _Answer:
    """Send a request about tokens; raises AdminError that begins with `failure`."""
    found: Any = ask_any(admin, request, answer)
    if found is None:
        raise AdminError(f"{failure}: this cluster serves no delegation tokens")
    check_code(found.error_code, failure)
    result: _Answer = found
    return result

"""Delegation tokens (KIP-48)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct

# CreateDelegationToken (key 38): a token with which its owner can authenticate elsewhere (KIP-48, KIP-373).


@struct
class CreatableRenewers:
    principal_type: str = f()
    principal_name: str = f()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    owner_principal_type: str | None = f("3+", nullable="3+")
    owner_principal_name: str | None = f("3+", nullable="3+")
    renewers: list[CreatableRenewers] = f()
    max_lifetime_ms: i64 = f()


@message(key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    error_code: i16 = f()
    principal_type: str = f()
    principal_name: str = f()
    token_requester_principal_type: str = f("3+")
    token_requester_principal_name: str = f("3+")
    issue_timestamp_ms: i64 = f()
    expiry_timestamp_ms: i64 = f()
    max_timestamp_ms: i64 = f()
    token_id: str = f()
    hmac: bytes = f()
    throttle_time_ms: i32 = f()


# RenewDelegationToken (key 39): extend the validity of a delegation token (KIP-48).


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    hmac: bytes = f()
    renew_period_ms: i64 = f()


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()


# ExpireDelegationToken (key 40): let a delegation token expire sooner, or at once (KIP-48).


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    hmac: bytes = f()
    expiry_time_period_ms: i64 = f()


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()


# DescribeDelegationToken (key 41): the delegation tokens that a client may see (KIP-48, KIP-373).


@struct
class DescribeDelegationTokenOwner:
    principal_type: str = f()
    principal_name: str = f()


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    owners: list[DescribeDelegationTokenOwner] | None = f(nullable="0+")


@struct
class DescribedDelegationTokenRenewer:
    principal_type: str = f()
    principal_name: str = f()


@struct
class DescribedDelegationToken:
    principal_type: str = f()
    principal_name: str = f()
    token_requester_principal_type: str = f("3+")
    token_requester_principal_name: str = f("3+")
    issue_timestamp: i64 = f()
    expiry_timestamp: i64 = f()
    max_timestamp: i64 = f()
    token_id: str = f()
    hmac: bytes = f()
    renewers: list[DescribedDelegationTokenRenewer] = f()


@message(key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    error_code: i16 = f()
    tokens: list[DescribedDelegationToken] = f()
    throttle_time_ms: i32 = f()

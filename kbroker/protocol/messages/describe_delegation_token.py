"""DescribeDelegationToken (key 41): the delegation tokens that a client may see (KIP-48, KIP-373)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


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

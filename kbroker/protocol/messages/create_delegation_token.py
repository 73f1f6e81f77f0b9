"""CreateDelegationToken (key 38): a token by which its owner can log in elsewhere (KIP-48, KIP-373)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


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

"""RenewDelegationToken (key 39): a delegation token is kept valid for longer (KIP-48)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    hmac: bytes = f()
    renew_period_ms: i64 = f()


@message(key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()

"""ExpireDelegationToken (key 40): a delegation token ends sooner, or at once (KIP-48)."""

from kbroker.protocol.schema import f, i16, i32, i64, message


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    hmac: bytes = f()
    expiry_time_period_ms: i64 = f()


@message(key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    error_code: i16 = f()
    expiry_timestamp_ms: i64 = f()
    throttle_time_ms: i32 = f()

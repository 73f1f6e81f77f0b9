"""SaslAuthenticate (key 36): one token of a SASL mechanism, and the server's answer to it (KIP-152, KIP-368)."""

from kbroker.protocol.schema import f, i16, i64, message


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = f()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    auth_bytes: bytes = f()
    session_lifetime_ms: i64 = f("1+")

"""Authentication."""

from kbroker.protocol.schema import f, i16, i64, message

# SaslHandshake (key 17): choose a SASL mechanism (KIP-43); never flexible.
#
# After version 0 bare tokens follow, each behind its size; after version 1 they follow in SaslAuthenticate (KIP-152).


@message(key=17, versions="0-1")
class SaslHandshakeRequest:
    mechanism: str = f()


@message(key=17, versions="0-1")
class SaslHandshakeResponse:
    error_code: i16 = f()
    mechanisms: list[str] = f()


# SaslAuthenticate (key 36): one token of a SASL mechanism, and the server's response to it (KIP-152, KIP-368).


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = f()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    auth_bytes: bytes = f()
    session_lifetime_ms: i64 = f("1+")

"""SaslHandshake (key 17): choose a SASL mechanism (KIP-43); never flexible.

After version 0 tokens follow as they are, each behind its size; after version 1 in SaslAuthenticate (KIP-152).
"""

from kbroker.protocol.schema import f, i16, message


@message(key=17, versions="0-1")
class SaslHandshakeRequest:
    mechanism: str = f()


@message(key=17, versions="0-1")
class SaslHandshakeResponse:
    error_code: i16 = f()
    mechanisms: list[str] = f()

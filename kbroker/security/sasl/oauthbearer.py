"""SASL OAUTHBEARER (RFC 7628), the server's side: a bearer token from another issuer.

Owns the messages. Never validates a token: a function from signed_tokens.py or unsecured_tokens.py does.

    client   n,[a=authzid],^Aauth=Bearer TOKEN^A[name=value^A...]^A
    server   empty; or {"status":"invalid_token"}, to which the client sends ^A, and then the authentication has failed
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from kbroker.security.sasl.authentication import AuthenticationFailed, Identity

MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
NAME: Final = "OAUTHBEARER"
MOST_BYTES: Final = 64 * 1024
"""The maximum size in bytes of a message.

A message of sasl.server.max.receive.size bytes would block the loop for about ten ms.
"""
_SEPARATOR: Final = "\x01"
_BEARER: Final = re.compile(r"bearer +([-_.+/a-zA-Z0-9]+=*)", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = "auth"
_MOST_PAIRS: Final = 100


class BadToken(Exception):  # noqa: N818 - an outcome
    """A token is refused. The message is for the log; the client receives `status`."""

    def __init__(self, reason: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


Validate = Callable[[str], Identity]
"""Returns a token's identity. Raises BadToken."""


class OAuthBearerServer:
    """One authentication of a client."""

    def __init__(self, validate: Validate) -> None:
        self._validate = validate
        self._refusal = ""
        self._reason = ""
        self._over = False
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> bytes:
        """Process the client's message, or its response to a refusal."""
        if self._over:
            raise AuthenticationFailed("OAUTHBEARER: a message after the last one")
        if self._refusal:
            self._over = True
            if token == _SEPARATOR.encode():
                raise AuthenticationFailed(f"OAUTHBEARER: {self._reason}", self._refusal)
            raise AuthenticationFailed("OAUTHBEARER: not the message that has to follow a refusal")
        if len(token) > MOST_BYTES:
            raise AuthenticationFailed(f"OAUTHBEARER: a message of {len(token)} bytes")
        acts_as, bearer = _parse(token)
        try:
            identity = self._validate(bearer)
        except BadToken as bad:
            answer = {"status": bad.status}
            if bad.scope is not None:
                answer["scope"] = bad.scope
            self._reason, self._refusal = str(bad), json.dumps(answer, separators=(",", ":"))
            return self._refusal.encode()
        self._over = True
        if acts_as not in ("", identity.name):
            text = "Authentication failed: Client requested an authorization id that is different from the token's name"
            raise AuthenticationFailed(text, text)
        self.identity = identity
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """Return the authorization id ("" for the client's own name) and the token."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise _wrong() from None
    head, *pairs = text.split(_SEPARATOR, _MOST_PAIRS)
    if len(pairs) < 3 or pairs[-2:] != ["", ""] or not head.startswith("n,") or not head.endswith(","):
        raise _wrong()
    acts_as = head[2:-1]
    if acts_as and not acts_as.startswith("a="):
        raise _wrong()
    found: dict[str, str] = {}
    for pair in pairs[:-2]:
        name, equals, value = pair.partition("=")
        if not equals or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None or name in found:
            raise _wrong()
        found[name] = value
    bearer = _BEARER.fullmatch(found.get(_AUTH, ""))
    if bearer is None:
        raise _wrong()
    return acts_as[2:].replace("=2C", ",").replace("=3D", "="), bearer[1]


def _wrong() -> AuthenticationFailed:
    return AuthenticationFailed("not a message of OAUTHBEARER")

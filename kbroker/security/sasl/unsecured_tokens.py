"""Unsigned tokens, for development: every client can write such a token, and claim any identity.

Owns the requirements on their claims, from the options unsecuredValidator... of Kafka's OAuthBearerLoginModule.
Unsigned tokens are accepted only if such an option is set.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, Final

from kbroker.config.model import ConfigError
from kbroker.security.sasl.authentication import Identity, Options
from kbroker.security.sasl.oauthbearer import BadToken, Validate

_PREFIX: Final = "unsecured"
_OPTIONS: Final = "unsecuredValidator"


def are_enabled(options: Options) -> bool:
    """Whether a login module's options enable unsigned tokens, either of clients or for this broker's own login."""
    return any(name.startswith(_PREFIX) for name in options)


def unsecured(options: Options, now_ms: Callable[[], int]) -> Validate:
    """Return a validator of unsigned tokens. Raises ConfigError."""
    name_claim = options.get(f"{_OPTIONS}PrincipalClaimName", "sub")
    scope_claim = options.get(f"{_OPTIONS}ScopeClaimName", "scope")
    required = options.get(f"{_OPTIONS}RequiredScope", "").split()
    skew_text = options.get(f"{_OPTIONS}AllowableClockSkewMs", "0")
    if not skew_text.isdecimal():
        raise ConfigError(f"{_OPTIONS}AllowableClockSkewMs is not a number of ms")
    skew_ms = int(skew_text)

    def validate(token: str) -> Identity:
        header, claims = _parts(token)
        if header.get("alg") != "none":
            raise BadToken("a signed token, but only unsigned ones are accepted")
        name = claims.get(name_claim)
        if not isinstance(name, str) or not name:
            raise BadToken(f"the token has no {name_claim}")
        now = now_ms()
        expires_ms = _ms(claims, "exp")
        if expires_ms is None:
            raise BadToken("the token does not expire")
        issued_ms = _ms(claims, "iat")
        if issued_ms is not None and issued_ms > now + skew_ms:
            raise BadToken("the token was issued in the future")
        if issued_ms is not None and expires_ms <= issued_ms:
            raise BadToken("the token expires before it is issued")
        if expires_ms + skew_ms <= now:
            raise BadToken("the token has expired")
        scopes = claims.get(scope_claim, [])
        held = scopes.split() if isinstance(scopes, str) else scopes
        if required and not (
            isinstance(held, list) and set(required) <= {each for each in held if isinstance(each, str)}
        ):
            raise BadToken("the token lacks a scope", "insufficient_scope", " ".join(required))
        return Identity(name, expires_ms)

    return validate


def _parts(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = token.split(".")
    if len(parts) != 3 or parts[2]:
        raise BadToken("not an unsigned token")
    found = []
    for part in parts[:2]:
        try:
            value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except (ValueError, binascii.Error, RecursionError):
            raise BadToken("a token that cannot be read") from None
        if not isinstance(value, dict):
            raise BadToken("a token that cannot be read")
        found.append(value)
    return found[0], found[1]


def _ms(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise BadToken(f"{name} is not a time")
    return int(value * 1000)

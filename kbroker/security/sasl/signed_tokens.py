"""Signed tokens: JSON Web Tokens (RFC 7519), verified by PyJWT.

Owns the requirements: a signature by a known key with a public-key algorithm, and valid times, issuer, audience, name
and scopes. Never fetches keys (key_set.py does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from kbroker.security.sasl.authentication import Identity
from kbroker.security.sasl.oauthbearer import BadToken, Validate

ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""The allowed algorithms of each kind of key; none of them uses a shared secret."""
_TRIED: Final = 8
"""The maximum number of keys tried for a token that does not name its key."""


@dataclass(frozen=True, slots=True)
class Key:
    """A public key: its id, its kind (kty), its only algorithm (alg; None: any), and the key as an object of PyJWT."""

    key_id: str | None
    kind: str
    algorithm: str | None
    public: Any


class Keys(Protocol):
    """The source of keys."""

    def known(self) -> Sequence[Key]:
        """Return the currently known keys."""

    def miss(self, key_id: str) -> None:
        """Handle a token that names an unknown key: the issuer may have a new key."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The required claims of tokens."""

    issuer: str | None
    audience: tuple[str, ...]
    name_claim: str
    scope_claim: str
    skew_seconds: int


def signed(keys: Keys, expected: Expected) -> Validate:
    """Return a validator of signed tokens."""
    import jwt

    def validate(token: str) -> Identity:
        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))
            claims = _verified(token, algorithm, _candidates(keys, algorithm, header.get("kid")))
        except BadToken:
            raise
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise BadToken(f"{type(error).__name__}") from None
        return _identity(claims, expected)

    def _verified(token: str, algorithm: str, candidates: Sequence[Key]) -> dict[str, Any]:
        error: jwt.PyJWTError | None = None
        for key in candidates:
            try:
                found: dict[str, Any] = jwt.decode(
                    token,
                    key.public,
                    algorithms=[algorithm],
                    issuer=expected.issuer,
                    audience=list(expected.audience) or None,
                    leeway=expected.skew_seconds,
                    options={"require": ["exp", "iat"], "verify_aud": bool(expected.audience)},
                )
            except jwt.InvalidSignatureError as wrong:
                error = wrong
            else:
                return found
        raise error or BadToken("no key for the token")

    return validate


def _candidates(keys: Keys, algorithm: str, key_id: Any) -> Sequence[Key]:
    fitting = [
        key for key in keys.known() if algorithm in ALGORITHMS.get(key.kind, ()) and key.algorithm in (None, algorithm)
    ]
    if key_id is None:
        return fitting[:_TRIED]
    if not isinstance(key_id, str):
        raise BadToken("kid is not a text")
    found = [key for key in fitting if key.key_id == key_id]
    if not found:
        if any(algorithm in each for each in ALGORITHMS.values()):
            keys.miss(key_id)
        raise BadToken("no key for the token")
    return found


def _identity(claims: Mapping[str, Any], expected: Expected) -> Identity:
    name = claims.get(expected.name_claim)
    if not isinstance(name, str) or not name.strip():
        raise BadToken(f"the token has no {expected.name_claim}")
    scopes = claims.get(expected.scope_claim)
    for scope in scopes if isinstance(scopes, list) else [] if scopes is None else [scopes]:
        if not isinstance(scope, str) or not scope.strip():
            raise BadToken(f"{expected.scope_claim} is no list of scopes")
    return Identity(name.strip(), int(claims["exp"]) * 1000)

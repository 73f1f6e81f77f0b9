"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both sides.

Owns the messages and their order. Does not know where credentials are stored, and uses no channel binding.

    client   n,[a=authzid],n=user,r=nonce[,extensions]
    server   r=nonce of both,s=salt,i=iterations
    client   c=base64 of "n,[a=authzid],",r=nonce of both[,extensions],p=proof
    server   v=signature

With the extension tokenauth=true the user's name is the id of a delegation token, and the password is its HMAC in
base64. In names a comma is =2C and an equals sign =3D. The server answers an unknown user like a known user: it sends a
salt that stays the same until the process ends, and then refuses every proof.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from kbroker.security.sasl.authentication import AuthenticationFailed, Identity
from kbroker.security.sasl.scram_credential import (
    HASHES,
    LEAST_ITERATIONS,
    ScramCredential,
    as_salt,
    client_key,
    salted_password,
    server_key,
)

MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
Lookup = Callable[[str], ScramCredential | None]
"""Returns a user's credential for one mechanism, or None."""


class TokenLogin(NamedTuple):
    """A delegation token for SCRAM: its credential, its owner, and its expiry in ms since 1970."""

    credential: ScramCredential
    owner: str
    expires_ms: int


TokenLookup = Callable[[str], TokenLogin | None]
"""Returns a delegation token for one mechanism by the token's id, or None."""
_SECRET: Final = secrets.token_bytes(32)
_MOST_ITERATIONS_ASKED: Final = 1_000_000
"""The maximum number of iterations that a client accepts: with more, a server could waste the client's time."""
_LONGEST: Final = 16 * 1024
"""The maximum size in bytes of a client's message. A name, a nonce and a proof together have some hundred bytes."""
_PRINTABLE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION: Final = re.compile(r"[A-Za-z]+=[^,\0]+")
_BY_TOKEN: Final = re.compile(r"tokenauth=true", re.IGNORECASE)
"""Matches the extension of a client that logs in with a delegation token (token id as name, HMAC as password)."""
_OTHER_EQUALS: Final = re.compile(r"=(?!2C|3D)")


class ScramServer:
    """One authentication of a client."""

    def __init__(self, mechanism: str, lookup: Lookup, token: TokenLookup = lambda _id: None) -> None:
        self._mechanism = mechanism
        self._lookup = lookup
        self._token = token
        self._next: Callable[[str], str] = self._first
        self._header = self._bare = self._challenge = self._nonce = self._name = ""
        self._credential: ScramCredential | None = None
        self._succeeds_as: Identity | None = None
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> bytes:
        """Process the client's next message."""
        step, self._next = self._next, _refuse
        if len(token) > _LONGEST:
            raise AuthenticationFailed(f"a SCRAM message of {len(token)} bytes")
        try:
            return step(token.decode()).encode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a SCRAM message is not UTF-8") from None

    def _first(self, message: str) -> str:
        parts = message.split(",")
        if len(parts) < 4 or parts[0] != "n" or not parts[2].startswith("n=") or not parts[3].startswith("r="):
            raise AuthenticationFailed("not the first message of SCRAM")
        nonce = parts[3][2:]
        if _PRINTABLE.fullmatch(nonce) is None or not all(map(_EXTENSION.fullmatch, parts[4:])):
            raise AuthenticationFailed("not the first message of SCRAM")
        acts_as = _acts_as(parts[1])
        self._name = _unquoted(parts[2][2:])
        self._header, self._bare = f"{parts[0]},{parts[1]},", ",".join(parts[2:])
        self._credential = self._found(by_token=any(map(_BY_TOKEN.fullmatch, parts[4:])))
        if acts_as not in ("", self._name):
            text = "Authentication failed: Client requested an authorization id that is different from username"
            raise AuthenticationFailed(text, text)
        self._nonce = nonce + secrets.token_hex(16)
        salt = base64.b64encode(self._credential.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        self._next = self._final
        return self._challenge

    def _found(self, *, by_token: bool) -> ScramCredential:
        """Return the user's or token's credential.

        For an unknown user, return a similar credential that no password matches.
        """
        if by_token:
            token = self._token(self._name)
            if token is not None:
                self._succeeds_as = Identity(token.owner, token.expires_ms, by_token=True)
                return token.credential
        else:
            found = self._lookup(self._name)
            if found is not None and found.iterations >= LEAST_ITERATIONS:
                self._succeeds_as = Identity(self._name)
                return found
        digest = hmac.digest(_SECRET, f"{self._mechanism} {self._name}".encode(), "sha512")
        size = hashlib.new(HASHES[self._mechanism]).digest_size
        return ScramCredential(as_salt(int.from_bytes(digest)), digest[:size], digest[:size], LEAST_ITERATIONS)

    def _final(self, message: str) -> str:
        credential = self._credential
        assert credential is not None
        without_proof, comma, proof_part = message.rpartition(",")
        parts = without_proof.split(",")
        if not comma or not proof_part.startswith("p=") or len(parts) < 2 or not parts[1].startswith("r="):
            raise AuthenticationFailed("not the final message of SCRAM")
        if not all(map(_EXTENSION.fullmatch, parts[2:])):
            raise AuthenticationFailed("not the final message of SCRAM")
        if parts[0] != f"c={base64.b64encode(self._header.encode()).decode()}":
            raise AuthenticationFailed("SCRAM: another channel binding than in the first message")
        if not hmac.compare_digest(parts[1][2:].encode(), self._nonce.encode()):
            raise AuthenticationFailed("SCRAM: not the nonce that was agreed on")
        signed = f"{self._bare},{self._challenge},{without_proof}".encode()
        hash_name = HASHES[self._mechanism]
        signature = hmac.digest(credential.stored_key, signed, hash_name)
        key = _xor(_base64(proof_part[2:]), signature)
        right = hmac.compare_digest(hashlib.new(hash_name, key).digest(), credential.stored_key)
        if not right or self._succeeds_as is None:
            raise AuthenticationFailed("SCRAM: wrong password, or no such user")
        self.identity = self._succeeds_as
        return f"v={base64.b64encode(hmac.digest(credential.server_key, signed, hash_name)).decode()}"


class ScramClient:
    """The client's side: this broker logs in to another broker."""

    def __init__(self, mechanism: str, name: str, password: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = secrets.token_hex(16)
        self._bare = f"n={name.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._signature = b""
        self._done = False

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, token: bytes) -> bytes | None:
        """Process the server's challenge, and then its signature, which proves that the server knows this user."""
        try:
            message = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed("a SCRAM message is not UTF-8") from None
        if not self._signature:
            return self._proof(message)
        if self._done or not hmac.compare_digest(_base64(message.removeprefix("v=")), self._signature):
            raise AuthenticationFailed("SCRAM: the server does not prove that it knows this user")
        self._done = True
        return None

    def _proof(self, challenge: str) -> bytes:
        parts = dict(part.partition("=")[::2] for part in challenge.split(","))
        nonce, iterations = parts.get("r", ""), parts.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or "s" not in parts or not iterations.isdecimal():
            raise AuthenticationFailed("not a challenge of SCRAM")
        if not LEAST_ITERATIONS <= int(iterations) <= _MOST_ITERATIONS_ASKED:
            raise AuthenticationFailed(f"SCRAM: {iterations} iterations")
        salted = salted_password(self._mechanism, self._password, _base64(parts["s"]), int(iterations))
        key, hash_name = client_key(self._mechanism, salted), HASHES[self._mechanism]
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{challenge},{without_proof}".encode()
        proof = _xor(key, hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name))
        self._signature = hmac.digest(server_key(self._mechanism, salted), signed, hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def _refuse(_message: str) -> str:
    raise AuthenticationFailed("SCRAM: a message after the last one")


def _acts_as(part: str) -> str:
    if not part:
        return ""
    if not part.startswith("a="):
        raise AuthenticationFailed("not the first message of SCRAM")
    return _unquoted(part[2:])


def _unquoted(name: str) -> str:
    if not name or "\0" in name or _OTHER_EQUALS.search(name):
        raise AuthenticationFailed("SCRAM: a name that cannot be")
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise AuthenticationFailed("SCRAM: not base64") from None


def _xor(first: bytes, second: bytes) -> bytes:
    if len(first) != len(second):
        raise AuthenticationFailed("SCRAM: a proof of the wrong length")
    return bytes(a ^ b for a, b in zip(first, second, strict=True))

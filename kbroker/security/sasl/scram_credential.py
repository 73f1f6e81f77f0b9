"""The stored form of a user's password for SCRAM (RFC 5802), which can check a password but does not contain it.

Owns the computation and Kafka's stored text: salt=...,stored_key=...,server_key=...,iterations=4096, with the first
three in base64. Also owns the place of this text in the configs of users, as in Kafka: /config/users/NAME contains
mechanism = credential, where NAME is encoded. Never stores anything. Together with recorded traffic the text is as good
as a password, so no log or response may contain it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash function of each mechanism."""
MECHANISM_TYPES: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""The mechanisms by their codes in requests."""
LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 16384
_SALT_BITS: Final = 130
_DIGITS: Final = string.digits + string.ascii_lowercase
_PARTS: Final = ("salt", "stored_key", "server_key", "iterations")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """One user's credential for one mechanism."""

    salt: bytes
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def text(self) -> str:
        """Return the credential in its stored form."""
        parts = [base64.b64encode(each).decode() for each in (self.salt, self.stored_key, self.server_key)]
        return ",".join(f"{name}={value}" for name, value in zip(_PARTS, [*parts, str(self.iterations)], strict=True))

    @classmethod
    def parse(cls, text: str) -> ScramCredential:
        """Parse a stored text; raises ValueError, whose message contains no part of the text."""
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        if set(parts) != set(_PARTS) or not parts["iterations"].isdecimal():
            raise ValueError("not a SCRAM credential")
        try:
            salt, stored, server = (base64.b64decode(parts[name], validate=True) for name in _PARTS[:3])
        except (binascii.Error, ValueError):
            raise ValueError("not a SCRAM credential") from None
        return cls(salt, stored, server, int(parts["iterations"]))


def from_salted_password(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password that is already salted, as in requests."""
    stored = hashlib.new(HASHES[mechanism], client_key(mechanism, salted)).digest()
    return ScramCredential(salt, stored, server_key(mechanism, salted), iterations)


def from_password(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password; takes some ms."""
    return from_salted_password(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return a salted password; takes some ms."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def client_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key with which a client proves that it knows the password."""
    return hmac.digest(salted, b"Client Key", HASHES[mechanism])


def server_key(mechanism: str, salted: bytes) -> bytes:
    """Return the key with which a server proves that it knows the user."""
    return hmac.digest(salted, b"Server Key", HASHES[mechanism])


def new_salt() -> bytes:
    """Return a new salt in the form of Kafka's tools."""
    return as_salt(secrets.randbits(_SALT_BITS))


def as_salt(number: int) -> bytes:
    """Return a number's last 130 bits as 26 digits in base 36."""
    number %= 1 << _SALT_BITS
    digits = ""
    for _ in range(26):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits.encode()


USERS = "users"
"""The config type of users."""


def entity_name(user: str) -> str:
    """Return a user's name as a part of a path: encoded as by Java's URLEncoder, without JMX's special characters."""
    return quote(user, safe="-_.", errors="replace").replace("~", "%7E")


def user_of(entity: str) -> str:
    """Return the user name that a part of a path encodes."""
    return unquote(entity)


def credential_of(configs: Mapping[str, Mapping[str, str]], user: str, mechanism: str) -> ScramCredential | None:
    """Return a user's credential for a mechanism; None if the credential is missing or unreadable."""
    text = configs.get(entity_name(user), {}).get(mechanism)
    if text is None:
        return None
    try:
        return ScramCredential.parse(text)
    except ValueError:
        return None


def credentials_of(configs: Mapping[str, str]) -> dict[str, ScramCredential]:
    """Return all credentials in one user's configs, by mechanism."""
    found = {}
    for mechanism in HASHES:
        if mechanism in configs:
            try:
                found[mechanism] = ScramCredential.parse(configs[mechanism])
            except ValueError:
                continue
    return found

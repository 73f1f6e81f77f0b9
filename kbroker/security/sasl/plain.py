"""SASL PLAIN (RFC 4616): a name and a password in clear text.

Owns the message ([authzid] NUL authcid NUL password, in UTF-8) and the comparison. Does not know where passwords are
stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from kbroker.security.sasl.authentication import AuthenticationFailed, Identity, Options

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_USER = "user_"


def passwords(options: Options) -> dict[str, str]:
    """Return the passwords by user from a PlainLoginModule's options, such as user_alice="secret"."""
    return {name.removeprefix(_USER): value for name, value in options.items() if name.startswith(_USER)}


class PlainServer:
    """One authentication of a client."""

    def __init__(self, known: Mapping[str, str]) -> None:
        """Set the known passwords, by user name."""
        self._known = known
        self._answered = False
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> bytes:
        """Process the client's only message."""
        if self._answered:
            raise AuthenticationFailed("PLAIN has only one message, but the client has sent a second one")
        self._answered = True
        parts = token.decode("utf-8", "replace").split("\0", 3)
        if len(parts) != 3:
            raise _failed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        acts_as, name, password = parts
        if not name:
            raise _failed("Authentication failed: username not specified")
        if not password:
            raise _failed("Authentication failed: password not specified")
        if not self._is_right(name, password):
            raise _failed("Authentication failed: Invalid username or password")
        if acts_as not in ("", name):
            raise _failed("Authentication failed: Client requested an authorization id that is different from username")
        self.identity = Identity(name)
        return b""

    def _is_right(self, name: str, password: str) -> bool:
        """Whether the password is correct. The check takes the same time for a wrong name, length or character."""
        expected = self._known.get(name)
        same = hmac.compare_digest(_digest(password), _digest(expected if expected is not None else ""))
        return same and expected is not None


class PlainClient:
    """The client's side: this broker logs in to another broker."""

    def __init__(self, name: str, password: str) -> None:
        self._message = f"\0{name}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def respond(self, token: bytes) -> bytes | None:
        """Accept the server's empty confirmation."""
        if token:
            raise AuthenticationFailed("PLAIN: the server's confirmation is not empty")
        return None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _failed(text: str) -> AuthenticationFailed:
    return AuthenticationFailed(text, text)

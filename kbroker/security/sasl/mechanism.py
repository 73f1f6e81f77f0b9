"""The interface of a SASL mechanism: bytes in, bytes out, and a name at the end.

Owns that interface and the two ways in which an authentication fails. Never touches a socket and never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):  # noqa: N818 - an outcome, not a fault of the program
    """An authentication has failed. The message is for the log, and contains no secret.

    `told` is the client's message; None for only a hint at invalid credentials.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class UnsupportedMechanism(AuthenticationFailed):
    """A client requested a mechanism that its listener does not offer."""


class MechanismChanged(AuthenticationFailed):
    """A client authenticates again with another mechanism; it gets no response at all."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated name, and the expiry of its credentials in ms since 1970; None for no expiry.

    `by_token`: with a delegation token.
    """

    name: str
    expires_ms: int | None = None
    by_token: bool = False


class ServerMechanism(Protocol):
    """The server's side of one authentication. `identity` is None until it has succeeded."""

    identity: Identity | None

    def respond(self, token: bytes) -> bytes:
        """Process the client's token and return the answer; raises AuthenticationFailed."""


class ClientMechanism(Protocol):
    """The client's side, where a broker logs in to another one."""

    def first(self) -> bytes:
        """Return the first token."""

    def respond(self, token: bytes) -> bytes | None:
        """Process the server's token and return the answer; None at the end. Raises AuthenticationFailed."""


Options = Mapping[str, str]
"""Those of a JAAS login module."""

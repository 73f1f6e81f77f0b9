"""What a SASL mechanism is to whoever runs it: bytes in, bytes out, and a name at the end.

Owns that seam and the two ways in which an authentication fails. Never touches a socket and never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class AuthenticationFailed(Exception):  # noqa: N818 - an outcome, not a fault of the program
    """An authentication has ended without success. The message is for the log, and holds no secret.

    `told` is what the client may know; None: no more than that its credentials are no good.
    """

    def __init__(self, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


class UnsupportedMechanism(AuthenticationFailed):
    """A client asked for a mechanism that its listener does not offer."""


class MechanismChanged(AuthenticationFailed):
    """A client authenticates again by another mechanism; it is not even answered."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who has authenticated, and when the credentials end in ms since 1970; None: they do not.

    `by_token`: by a delegation token.
    """

    name: str
    expires_ms: int | None = None
    by_token: bool = False


class ServerMechanism(Protocol):
    """The server's side of one authentication. `identity` is None until it has succeeded."""

    identity: Identity | None

    def respond(self, token: bytes) -> bytes:
        """Take what the client says and return what to say to it; raises AuthenticationFailed."""


class ClientMechanism(Protocol):
    """The client's side, where a broker logs in to another one."""

    def first(self) -> bytes:
        """Return what to begin with."""

    def respond(self, token: bytes) -> bytes | None:
        """Take what the server says and return what to say; None: all is said. Raises AuthenticationFailed."""


Options = Mapping[str, str]
"""Those of a JAAS login module."""

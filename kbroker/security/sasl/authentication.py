"""The authentication on one connection: the allowed requests, and its result.

Owns the order of requests (Apache Kafka: SaslServerAuthenticator), and the interface of a mechanism (bytes in, bytes
out, and a name at the end). Also owns the session of a login: its end, the times at which a client may log in again
(KIP-368), and the time at which a broker renews its own login to another broker. Never handles a frame:
network/sasl_gate.py reads and writes frames.

    FIRST       ApiVersions, once, or SaslHandshake
    HANDSHAKE   SaslHandshake
    TOKENS      tokens, in SaslAuthenticate or, after a handshake of version 0, without a header
    DONE        any request, until the session ends; a SaslHandshake starts again if sessions end
    FAILED      nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from kbroker.security.principal import USER, Principal, printable


class AuthenticationFailed(Exception):  # noqa: N818 - an outcome, not a fault of the program
    """An authentication has failed. The message is for the log, and contains no secret.

    `client_message` is the message for the client; if it is None, the client receives the general message that its
    credentials are invalid.
    """

    def __init__(self, reason: str, client_message: str | None = None) -> None:
        super().__init__(reason)
        self.client_message = client_message


class UnsupportedMechanism(AuthenticationFailed):
    """A client requested a mechanism that its listener does not offer."""


class MechanismChanged(AuthenticationFailed):
    """Raised if a client authenticates again with another mechanism. The client receives no response."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated name, and the expiry of its credentials in ms since 1970 (None: they do not expire).

    `by_token` is True if the client logged in with a delegation token.
    """

    name: str
    expires_ms: int | None = None
    by_token: bool = False


class ServerMechanism(Protocol):
    """The server's side of one authentication. `identity` is None until the authentication has succeeded."""

    identity: Identity | None

    def respond(self, token: bytes) -> bytes:
        """Process the client's token and return the answer. Raises AuthenticationFailed."""


class ClientMechanism(Protocol):
    """The client's side of an authentication, for a login of this broker to another broker."""

    def first(self) -> bytes:
        """Return the first token."""

    def respond(self, token: bytes) -> bytes | None:
        """Process the server's token and return the answer; None at the end. Raises AuthenticationFailed."""


Options = Mapping[str, str]
"""The options of a JAAS login module."""


LEAST_MS_BETWEEN: Final = 1000
"""The minimum time in ms between two authentications of a client. An earlier authentication is refused."""
_SHARE_OF_SESSION: Final = 0.85
"""The share of a session's time after which a broker renews its login to another broker."""
_LONGEST_MS: Final = (1 << 63) - 1


def log_in_again_after_s(lifetime_ms: int) -> float:
    """Return the seconds after which a session of this lifetime must be renewed; infinity for 0 (no end)."""
    return lifetime_ms / 1000 * _SHARE_OF_SESSION if lifetime_ms > 0 else math.inf


class Session:
    """The session of one connection. `monotonic_ms` is the clock of sessions."""

    __slots__ = ("_monotonic_ms", "_renewed_ms", "ends_ms")

    def __init__(self, monotonic_ms: Callable[[], float]) -> None:
        self._monotonic_ms = monotonic_ms
        self._renewed_ms: float | None = None
        self.ends_ms: float | None = None
        """The end of the session on the clock `monotonic_ms`, or None."""

    def begin(self, left_ms: int | None, longest_ms: int) -> int:
        """Begin the session; return its lifetime in ms, or 0 if it has no end or ends immediately.

        `left_ms` is the credential's remaining time (None: no end), `longest_ms` the configured maximum (0: no limit).
        """
        limits = [] if left_ms is None else [left_ms]
        if longest_ms > 0:
            limits.append(longest_ms)
        if not limits:
            self.ends_ms = None
            return 0
        lifetime_ms = min(max(min(limits), 0), _LONGEST_MS)
        self.ends_ms = self._monotonic_ms() + lifetime_ms
        return lifetime_ms

    def may_be_renewed(self) -> bool:
        """Return whether the client may authenticate again now, and record the time if it may."""
        now = self._monotonic_ms()
        if self.ends_ms is None or (self._renewed_ms is not None and now - self._renewed_ms < LEAST_MS_BETWEEN):
            return False
        self._renewed_ms = now
        return True

    @property
    def is_over(self) -> bool:
        """Whether the session has ended."""
        return self.ends_ms is not None and self._monotonic_ms() > self.ends_ms


class Stage(Enum):
    """The states of an authentication, named after the expected request; see the module's docstring."""

    FIRST = 1
    HANDSHAKE = 2
    TOKENS = 3
    DONE = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Offer:
    """The mechanisms of a listener: `begin` creates the server's side of each; `max_session_ms` is 0 for no limit."""

    begin: Mapping[str, Callable[[], ServerMechanism]]
    max_session_ms: Mapping[str, int]
    max_receive_bytes: int
    failure_delay_ms: int

    @property
    def mechanisms(self) -> list[str]:
        """The names of the mechanisms, as configured."""
        return list(self.begin)


class Authentication:
    """The authentication of one connection. `now_ms` is the wall clock, `monotonic_ms` the clock of sessions."""

    def __init__(self, offer: Offer, now_ms: Callable[[], int], monotonic_ms: Callable[[], float]) -> None:
        self._offer = offer
        self._now_ms = now_ms
        self._server: ServerMechanism | None = None
        self._changes_mechanism = False
        self.stage = Stage.FIRST
        self.mechanism = ""
        self.wrapped = False
        """Whether tokens are sent in SaslAuthenticate."""
        self.principal: Principal | None = None
        """The authenticated principal."""
        self.session = Session(monotonic_ms)
        """The session of the login."""

    @property
    def again(self) -> bool:
        """Whether the client has already authenticated before."""
        return self.principal is not None

    def versions_answered(self) -> None:
        """Record that ApiVersions was answered without an error. A second ApiVersions is not allowed."""
        self.stage = Stage.HANDSHAKE

    def handshake(self, mechanism: str, version: int) -> None:
        """Begin an authentication with a mechanism. Raises UnsupportedMechanism, AuthenticationFailed."""
        if self.stage not in (Stage.FIRST, Stage.HANDSHAKE):
            raise self._failed(AuthenticationFailed("a SaslHandshake where a token is expected"))
        if version > 0:
            self.wrapped = True
        begin = self._offer.begin.get(mechanism)
        if begin is None:
            raise self._failed(UnsupportedMechanism("a SASL mechanism that is not offered"))
        self._changes_mechanism = self.again and mechanism != self.mechanism
        if not self._changes_mechanism:
            self.mechanism = mechanism
            self._server = begin()
        self.stage = Stage.TOKENS

    def token(self, token: bytes) -> tuple[bytes, int]:
        """Process a token.

        Returns the server's token, and the session's lifetime in ms (0 before a session begins, or if the session has
        no end). Raises AuthenticationFailed. After this error, no further request is accepted.
        """
        if self.stage is not Stage.TOKENS:
            raise self._failed(AuthenticationFailed("a token where none is expected"))
        if self._changes_mechanism or self._server is None:
            raise self._failed(MechanismChanged("the mechanism must not change when a client authenticates again"))
        try:
            answer = self._server.respond(token)
            if self._server.identity is None:
                return answer, 0
            return answer, self._succeed(self._server.identity)
        except AuthenticationFailed as failed:
            raise self._failed(failed) from None

    def _succeed(self, identity: Identity) -> int:
        principal = Principal(USER, identity.name, identity.by_token)
        if self.principal is not None and principal != self.principal:
            text = "Cannot change principals during re-authentication"
            raise AuthenticationFailed(printable(f"{text} from {self.principal} to {principal}"), text)
        self.principal = principal
        self._server = None
        self.stage = Stage.DONE
        left_ms = None if identity.expires_ms is None else identity.expires_ms - self._now_ms()
        return self.session.begin(left_ms, self._offer.max_session_ms.get(self.mechanism, 0))

    def begin_again(self) -> bool:
        """Return whether a client may authenticate again now; if so, expect its handshake."""
        if self.stage is not Stage.DONE or not self.session.may_be_renewed():
            return False
        self.stage = Stage.HANDSHAKE
        self.wrapped = False
        return True

    def client_message(self, failed: AuthenticationFailed) -> str:
        """Return the message about a failure for the client."""
        course = "re-authentication" if self.again else "authentication"
        generic = f"Authentication failed during {course} due to invalid credentials with SASL mechanism"
        return failed.client_message or f"{generic} {self.mechanism}"

    def _failed(self, failed: AuthenticationFailed) -> AuthenticationFailed:
        self.stage = Stage.FAILED
        self._server = None
        return failed

"""The authentication on one connection: which request may come next, and its result.

Owns the order (Apache Kafka: SaslServerAuthenticator). reauthentication.py owns the end of a session, and when a client
may authenticate again. Never sees a frame: network/sasl_gate.py reads and writes those.

    FIRST       ApiVersions, once, or SaslHandshake
    HANDSHAKE   SaslHandshake
    TOKENS      tokens, in SaslAuthenticate or, after a handshake of version 0, without a header
    DONE        any request, until the session ends; a SaslHandshake starts again if sessions end
    FAILED      nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from kbroker.security.principal import USER, Principal, printable
from kbroker.security.sasl.mechanism import (
    AuthenticationFailed,
    Identity,
    MechanismChanged,
    ServerMechanism,
    UnsupportedMechanism,
)
from kbroker.security.sasl.reauthentication import Session


class Stage(Enum):
    """The expected request; see the module's docstring."""

    FIRST = 1
    HANDSHAKE = 2
    TOKENS = 3
    DONE = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a listener. `begin` makes the server's side of each mechanism, `max_session_ms` is 0 for no end."""

    begin: Mapping[str, Callable[[], ServerMechanism]]
    max_session_ms: Mapping[str, int]
    max_receive_bytes: int
    failure_delay_ms: int

    @property
    def mechanisms(self) -> list[str]:
        """The names of the mechanisms, as configured."""
        return list(self.begin)


class Authentication:
    """The authentication of one connection. `now_ms` is the time of day, `monotonic_ms` the clock of sessions."""

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
        """The duration of the login."""

    @property
    def again(self) -> bool:
        """Whether this is no longer the first authentication."""
        return self.principal is not None

    def versions_answered(self) -> None:
        """Note that ApiVersions was answered without an error: it is allowed only once."""
        self.stage = Stage.HANDSHAKE

    def handshake(self, mechanism: str, version: int) -> None:
        """Begin with a mechanism. Raises UnsupportedMechanism, AuthenticationFailed."""
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

        Return the server's token and the session's length in ms, 0 while there is none or without an end.
        Raises AuthenticationFailed; no further request is accepted after it.
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
        """Whether a client may authenticate again now; if so, expect its handshake."""
        if self.stage is not Stage.DONE or not self.session.may_be_renewed():
            return False
        self.stage = Stage.HANDSHAKE
        self.wrapped = False
        return True

    def told(self, failed: AuthenticationFailed) -> str:
        """Return the client's message for a failure."""
        course = "re-authentication" if self.again else "authentication"
        generic = f"Authentication failed during {course} due to invalid credentials with SASL mechanism"
        return failed.told or f"{generic} {self.mechanism}"

    def _failed(self, failed: AuthenticationFailed) -> AuthenticationFailed:
        self.stage = Stage.FAILED
        self._server = None
        return failed

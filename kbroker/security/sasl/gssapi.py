"""SASL GSSAPI (RFC 4752), the server's side: Kerberos tickets.

Owns the order of messages, and the agreement that SASL encrypts nothing afterwards (TLS may). A security context, which
kerberos.py creates with the system's library, handles the tickets. Never reads a keytab.

    client   a token of the context, and more while the context is incomplete
    server   tokens of the context; then, wrapped, the offered layers: none, which is 1, and no size
    client   (empty, if the context's last token was the server's;) wrapped: its layer, a size, the identity it acts as
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from kbroker.security.sasl.authentication import AuthenticationFailed, Identity
from kbroker.security.tls.mapping import NoRule

NAME: Final = "GSSAPI"
MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
MOST_BYTES: Final = 128 * 1024
"""The maximum size in bytes of a message. A ticket that lists the groups of a large directory has 64 kB."""
_MOST_STEPS: Final = 10
_NO_LAYER: Final = 1


class ContextFailed(Exception):  # noqa: N818 - an outcome
    """A security context refuses a client's token; the message contains no secret."""


class Context(Protocol):
    """The accepting side of a GSS-API security context. All methods raise ContextFailed."""

    @property
    def complete(self) -> bool:
        """Whether both sides have finished."""

    @property
    def initiator(self) -> str:
        """The client's name, once the context is complete: service/host@REALM."""

    def step(self, token: bytes) -> bytes:
        """Process the client's token and return the answer, which may be empty."""

    def wrap(self, message: bytes) -> bytes:
        """Return a message in a form that the client can verify."""

    def unwrap(self, message: bytes) -> bytes:
        """Return a verified message of the client."""


class GssapiServer:
    """One authentication of a client. `name_of` converts a principal's name to a user name, and raises NoRule."""

    def __init__(self, begin: Callable[[], Context], name_of: Callable[[str], str]) -> None:
        self._begin = begin
        self._name_of = name_of
        self._context: Context | None = None
        self._next: Callable[[bytes], bytes] = self._negotiate
        self._steps = 0
        self.identity: Identity | None = None

    def respond(self, token: bytes) -> bytes:
        """Process the client's next message."""
        step, self._next = self._next, _refuse
        if len(token) > MOST_BYTES:
            raise AuthenticationFailed(f"a GSSAPI message of {len(token)} bytes")
        try:
            return step(token)
        except ContextFailed as failed:
            raise AuthenticationFailed(f"GSSAPI: {failed}") from None

    def _negotiate(self, token: bytes) -> bytes:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise AuthenticationFailed("GSSAPI: there is no end of tokens")
        if self._context is None:
            self._context = self._begin()
        answer = self._context.step(token)
        if not self._context.complete:
            self._next = self._negotiate
            return answer
        if answer:
            self._next = self._acknowledged
            return answer
        return self._offer(self._context)

    def _acknowledged(self, token: bytes) -> bytes:
        assert self._context is not None
        if token:
            raise AuthenticationFailed("GSSAPI: a token of a context that is complete")
        return self._offer(self._context)

    def _offer(self, context: Context) -> bytes:
        self._next = self._agree
        return context.wrap(bytes([_NO_LAYER, 0, 0, 0]))

    def _agree(self, token: bytes) -> bytes:
        assert self._context is not None
        unwrapped = self._context.unwrap(token)
        if len(unwrapped) < 4 or unwrapped[0] != _NO_LAYER:
            raise AuthenticationFailed("GSSAPI: a layer that was not offered")
        principal = self._context.initiator
        try:
            # The authorization id follows the size; it is ignored, as in Kafka.
            name = self._name_of(principal)
        except NoRule as error:
            raise AuthenticationFailed(str(error)) from None
        if not name:
            raise AuthenticationFailed("GSSAPI: a principal without a name")
        self.identity = Identity(name)
        return b""


def _refuse(_token: bytes) -> bytes:
    raise AuthenticationFailed("GSSAPI: a message after the last one")

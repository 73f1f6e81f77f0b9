"""The gate of a listener with SASL: the requests allowed before authentication, and the time to authenticate again.

Owns the frames of an authentication: ApiVersions, SaslHandshake, SaslAuthenticate, and tokens without a header after a
handshake of version 0. Never checks credentials (security/sasl/). The gate replaces the dispatcher for one connection.
After the client has authenticated, the dispatcher replaces the gate. It does so permanently if the client's session has
no end.

After a failed authentication, the gate stops reading from the connection, responds after
`connection.failed.authentication.delay.ms`, and closes the connection. After any other forbidden request it closes the
connection immediately, without a response.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Protocol

from kbroker.clock import Clock
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.long_work import awaited, whole
from kbroker.network.dispatch import (
    API_VERSIONS_KEY,
    LONG_FRAME,
    Decoded,
    Dispatcher,
    Entry,
    Run,
    Work,
    encode_answer,
)
from kbroker.protocol.compiler import Spill
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.connections import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kbroker.security.sasl.authentication import (
    Authentication,
    AuthenticationFailed,
    MechanismChanged,
    Offer,
    Stage,
    UnsupportedMechanism,
)

HANDSHAKE_KEY: int = SaslHandshakeRequest.KEY  # type: ignore[attr-defined]
AUTHENTICATE_KEY: int = SaslAuthenticateRequest.KEY  # type: ignore[attr-defined]
_KEY = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_LEGIBLE = 4096
"""The maximum number of decoded bytes of a request that arrives instead of a token.

The error is returned in the request's format.
"""


class Gated(Protocol):
    """The parts of a connection that the gate uses."""

    run: Run

    def limit_frames(self, size: int) -> None:
        """Refuse frames larger than `size` bytes from now on."""


class SaslGate:
    """The gate of one connection; `run` replaces Dispatcher.run."""

    def __init__(
        self, connection: Gated, dispatcher: Dispatcher, offer: Offer, clock: Clock, max_request_bytes: int
    ) -> None:
        self._connection = connection
        self._dispatcher = dispatcher
        self._offer = offer
        self._max_request_bytes = max_request_bytes
        self._authentication = Authentication(offer, clock.now_ms, clock.monotonic_ms)
        connection.limit_frames(min(offer.max_receive_bytes, max_request_bytes))

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Run one frame, like Dispatcher.run."""
        authentication = self._authentication
        if authentication.stage is Stage.DONE:
            if authentication.session.ends_ms is None:
                return self._dispatcher.entrance(context, frame, out, spill)
            if not (frame[:2] == _KEY.pack(HANDSHAKE_KEY) and authentication.begin_again()):
                if authentication.session.is_over:
                    raise CloseConnection("its session is over, and it has not authenticated again")
                return self._dispatcher.entrance(context, frame, out, spill)
        if len(frame) > self._offer.max_receive_bytes:
            raise CloseConnection(f"an authentication token of {len(frame)} bytes (sasl.server.max.receive.size)")
        if authentication.stage is Stage.TOKENS and not authentication.wrapped:
            return self._bare_token(context, bytes(frame), out)
        entry, correlation_id, position = self._dispatcher.head(context, frame)
        entry.tally.requests += 1
        if authentication.stage is Stage.TOKENS:
            if entry.api.key != AUTHENTICATE_KEY:
                return self._instead_of_token(entry, correlation_id, frame, position)
            if len(frame) > LONG_FRAME:
                return self._long_token(context, entry, correlation_id, frame, position)
            return self._token(context, entry, correlation_id, _decoded(entry, frame, position), out, spill)
        if len(frame) > LONG_FRAME:
            raise CloseConnection(f"{entry.api.name} of {len(frame)} bytes before authentication")
        if entry.api.key == HANDSHAKE_KEY:
            request = _decoded(entry, frame, position)
            return self._handshake(entry, correlation_id, request.mechanism, out, spill)
        if entry.api.key == API_VERSIONS_KEY and authentication.stage is Stage.FIRST:
            request = _decoded(entry, frame, position) if entry.version == context.version else None
            answer = entry.handler(context, request)
            encode_answer(entry, correlation_id, answer, out, spill)
            if not answer.error_code:
                authentication.versions_answered()
            return None
        raise CloseConnection(f"{entry.api.name} before authentication")

    def _handshake(
        self, entry: Entry, correlation_id: int, mechanism: str, out: bytearray, spill: Spill
    ) -> Work | None:
        code = ErrorCode.NONE
        reason = ""
        try:
            self._authentication.handshake(mechanism, entry.version)
        except UnsupportedMechanism as failed:
            if self._authentication.again:  # as in Kafka, which responds only in the first authentication
                raise CloseConnection(str(failed)) from None
            code, reason = ErrorCode.UNSUPPORTED_SASL_MECHANISM, str(failed)
        answer = SaslHandshakeResponse(error_code=code, mechanisms=self._offer.mechanisms)
        if code:
            return self._refuse(entry, reason, _framed(entry, correlation_id, answer))
        encode_answer(entry, correlation_id, answer, out, spill)
        return None

    def _token(
        self, context: RequestContext, entry: Entry, correlation_id: int, request: Any, out: bytearray, spill: Spill
    ) -> Work | None:
        try:
            token, lifetime_ms = self._authentication.token(bytes(request.auth_bytes))
        except MechanismChanged as failed:
            return self._refuse(entry, str(failed), b"")
        except AuthenticationFailed as failed:
            text = self._authentication.client_message(failed)
            answer = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
            return self._refuse(entry, str(failed), _framed(entry, correlation_id, answer))
        answer = SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=lifetime_ms)
        encode_answer(entry, correlation_id, answer, out, spill)
        self._admit(context)
        return None

    def _long_token(
        self, context: RequestContext, entry: Entry, correlation_id: int, frame: memoryview, position: int
    ) -> Work:
        work = Work(entry, len(frame))
        work.keeps_frame = True
        work.steps = self._long_steps(context, entry, correlation_id, frame[position:])
        return work

    async def _long_steps(
        self, context: RequestContext, entry: Entry, correlation_id: int, body: memoryview
    ) -> tuple[bytearray, Spill] | None:
        try:
            request = await entry.divided_decode()(body, Decoded().take)
        except Malformed as err:
            raise CloseConnection(f"{entry.api.name} v{entry.version}: {err}") from None
        out, spill = bytearray(), list[Any]()
        refused = self._token(context, entry, correlation_id, request, out, spill)
        if refused is not None:
            await refused.steps
        return out, spill

    def _bare_token(self, context: RequestContext, token: bytes, out: bytearray) -> Work | None:
        try:
            answer, _ = self._authentication.token(token)
        except AuthenticationFailed as failed:
            return self._refuse(self._dispatcher.entry(AUTHENTICATE_KEY, 0), str(failed), b"")
        out += _SIZE.pack(len(answer)) + answer
        self._admit(context)
        return None

    def _instead_of_token(self, entry: Entry, correlation_id: int, frame: memoryview, position: int) -> Work:
        """Return an error response in the format of the request: the client has to authenticate first."""
        self._authentication.stage = Stage.FAILED
        if len(frame) > _LEGIBLE or entry.version not in entry.api.versions:
            raise CloseConnection(f"{entry.api.name} where a token is expected")
        request = _decoded(entry, frame, position)
        answer = whole(awaited(entry.api.on_error(request, ErrorCode.ILLEGAL_SASL_STATE, None)))  # never waits
        farewell = _framed(entry, correlation_id, answer) if answer.__class__ is entry.response else b""
        return self._refuse(entry, f"{entry.api.name} where a token is expected", farewell)

    def _admit(self, context: RequestContext) -> None:
        authentication = self._authentication
        if authentication.stage is not Stage.DONE:
            return
        assert authentication.principal is not None
        context.principal = authentication.principal
        self._connection.limit_frames(self._max_request_bytes)
        self._connection.run = self._dispatcher.entrance if authentication.session.ends_ms is None else self.run

    def _refuse(self, entry: Entry, reason: str, farewell: bytes) -> Work:
        work = Work(entry, 0)
        work.steps = _later(self._offer.failure_delay_ms / 1000, f"authentication failed: {reason}", farewell)
        return work


async def _later(seconds: float, reason: str, farewell: bytes) -> None:
    await asyncio.sleep(seconds)
    raise CloseConnection(reason, farewell)


def _decoded(entry: Entry, frame: memoryview, position: int) -> Any:
    try:
        return entry.decode(frame[position:])
    except Malformed as err:
        raise CloseConnection(f"{entry.api.name} v{entry.version}: {err}") from None


def _framed(entry: Entry, correlation_id: int, answer: Any) -> bytes:
    out, spill = bytearray(), list[Any]()
    encode_answer(entry, correlation_id, answer, out, spill)
    return bytes(out) if not spill else b""

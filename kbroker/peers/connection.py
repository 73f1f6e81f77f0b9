"""A connection to another broker, plain or with TLS: sends and receives frames, and matches responses to requests.

Owns the socket and its requests in flight. Never retries: only the caller knows whether a retry is allowed.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from kbroker.config.model import ConfigError
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.compiler import decode, encode, encode_in_parts
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.connections import (
    RequestHeader,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kbroker.protocol.wire import read_uvarint
from kbroker.security.sasl.authentication import AuthenticationFailed, log_in_again_after_s
from kbroker.security.sasl.settings import Login

Answer = TypeVar("Answer")

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""The maximum size of a received frame in bytes. A larger frame ends the connection.

A follower requests 10 MB. The response may exceed this size by one batch.
"""
_CONNECT_SECONDS = 10
"""socket.connection.setup.timeout.ms, in seconds.

Without this limit the operating system would retry for minutes, even after the network is back.
"""
_SMALL: Final = 64 * 1024
"""The maximum size in bytes of a frame that is sent as one buffer."""
_LENGTH, _CORRELATION = struct.Struct(">i"), struct.Struct(">i")


Tls = Callable[[], ssl.SSLContext | None]
"""Returns the TLS context of a new connection, or None for a connection without TLS."""


def _plain() -> None:
    return None


class TcpPeers:
    """Creates connections to brokers over TCP, with TLS if `tls` returns a context.

    `login` begins an authentication if the broker requires one.
    """

    def __init__(self, tls: Tls = _plain, login: Login | None = None) -> None:
        self._tls = tls
        self._login = login

    def peer(self, host: str, port: int, client_id: str) -> TcpPeer:
        return TcpPeer(host, port, client_id, self._tls, self._login)


class TcpPeer:
    """A Peer over TCP."""

    def __init__(self, host: str, port: int, client_id: str, tls: Tls = _plain, login: Login | None = None) -> None:
        self._address = host, port
        self._tls = tls
        self._login = login
        self._log_in_at = math.inf
        """The time of the event loop's clock at which to authenticate again. This time is before the session's end."""
        self._client_id = client_id
        self._correlation = 0
        self._frames: _Frames | None = None
        self._connecting: asyncio.Task[_Frames] | None = None
        self._closed = False

    async def ask(self, request: Any, version: int, answer: type[Answer], timeout_ms: float) -> Answer:
        if self._closed:
            raise PeerUnavailable("closed")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                frames = self._frames
                if frames is None or frames.is_lost or asyncio.get_running_loop().time() >= self._log_in_at:
                    frames = await self._connected()
                body = await frames.exchange(self._framed(request, version), self._correlation)
        except TimeoutError:
            # The late response may still arrive, and must not be mistaken for the response to the next request.
            self._drop("no answer in time")
            raise PeerUnavailable(f"no answer from {self} within {timeout_ms:.0f} ms") from None
        except OSError as error:
            raise PeerUnavailable(f"{self} cannot be reached: {error}") from None
        try:
            return decode(answer, version, body[_header_bytes(request, version, body) :])
        except (Malformed, IndexError) as error:
            self._drop("an answer that cannot be read")
            raise PeerUnavailable(f"{self} sent an unreadable response: {error}") from None

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._drop("closed")

    def __str__(self) -> str:
        host, port = self._address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _framed(self, request: Any, version: int) -> list[Any]:
        """Return a frame as buffers, because the records of a Produce request may be large and are not copied."""
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        header = RequestHeader(request.KEY, version, self._correlation, self._client_id)
        parts = [encode(header, 2 if version in request.FLEXIBLE else 1), *encode_in_parts(request, version)]
        return [_LENGTH.pack(sum(map(len, parts))), *parts]

    async def _connected(self) -> _Frames:
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            # Retrieve the exception: all waiting callers may have given up before the attempt fails.
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            # A caller that gives up must not cancel the attempt, because other callers may wait for the same
            # connection.
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            # Either `close` has ended the attempt, or the waiting caller was cancelled. Do not suppress the
            # cancellation of the caller.
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                raise PeerUnavailable("closed") from None
            raise

    async def _connect(self) -> _Frames:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                frames = self._frames
                if frames is None or frames.is_lost:
                    frames = await self._reached()
                if self._login is not None:
                    try:
                        await self._authenticate(frames, self._login)
                    except BaseException:
                        frames.end("not logged in")
                        raise
                self._frames = frames
            return frames
        finally:
            self._connecting = None

    async def _reached(self) -> _Frames:
        self._log_in_at = math.inf
        context = self._tls()
        name = self._address[0] if context is not None else None
        loop = asyncio.get_running_loop()
        # Resolve the name separately: uvloop logs a traceback for an unknown name if no caller awaits the connection
        # any more.
        found = await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
        for number, each in enumerate(found, 1):
            try:
                host, port = each[4][:2]
                _, frames = await loop.create_connection(
                    _Frames, str(host), int(port), ssl=context, server_hostname=name
                )
            except OSError:
                if number == len(found):
                    raise
            else:
                return frames
        raise OSError("the name has no address")

    async def _authenticate(self, frames: _Frames, login: Login) -> None:
        """Authenticate. Raises PeerUnavailable if the other broker refuses."""
        try:
            mechanism, client = login()
            answer = await self._exchange(frames, SaslHandshakeRequest(mechanism), 1, SaslHandshakeResponse)
            if answer.error_code:
                raise PeerUnavailable(
                    f"{self} does not offer {mechanism}, but {', '.join(answer.mechanisms) or 'nothing'}"
                )
            token: bytes | None = client.first()
            while token is not None:
                response = await self._exchange(frames, SaslAuthenticateRequest(token), 2, SaslAuthenticateResponse)
                if response.error_code:
                    raise PeerUnavailable(f"{self} does not let this broker in: {response.error_message}")
                # Salting a password takes a few ms, so let other work run meanwhile.
                token = await asyncio.to_thread(client.respond, bytes(response.auth_bytes))
        except (AuthenticationFailed, ConfigError) as error:
            raise PeerUnavailable(f"the authentication with {self} failed: {error}") from None
        again_after_s = log_in_again_after_s(response.session_lifetime_ms)
        self._log_in_at = asyncio.get_running_loop().time() + again_after_s

    async def _exchange(self, frames: _Frames, request: Any, version: int, answer: type[Answer]) -> Answer:
        body = await frames.exchange(self._framed(request, version), self._correlation)
        try:
            return decode(answer, version, body[_header_bytes(request, version, body) :])
        except (Malformed, IndexError) as error:
            raise PeerUnavailable(f"{self} sent an unreadable response: {error}") from None

    def _drop(self, why: str) -> None:
        if self._frames is not None:
            self._frames.end(why)
            self._frames = None


class _Frames(asyncio.BufferedProtocol):
    """The frames of a connection. Each frame is received into its own memory, to which the decoded response refers."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        self._buffer = memoryview(bytearray(_LENGTH.size))
        self._filled = 0
        self._in_length = True
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(str(exc) if exc else "the connection was closed")

    def exchange(self, frame: list[Any], correlation: int) -> asyncio.Future[memoryview]:
        """Send a frame; return a future of the response. Raises PeerUnavailable."""
        if self.is_lost or self._transport is None:
            raise PeerUnavailable("the connection was closed")
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append((correlation, future))
        if sum(map(len, frame)) <= _SMALL:
            frame = [b"".join(frame)]
        self._transport.writelines(frame)
        return future

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._buffer):
            return
        done, self._filled, was_length = self._buffer, 0, self._in_length
        self._in_length = not was_length
        if not was_length:
            self._buffer = memoryview(bytearray(_LENGTH.size))
            self._take(done)
            return
        size = _LENGTH.unpack(done)[0]
        if not _CORRELATION.size <= size <= MAX_ANSWER_BYTES:
            self.end(f"a frame of {size} bytes")
            return
        self._buffer = memoryview(bytearray(size))

    def _take(self, frame: memoryview) -> None:
        correlation = _CORRELATION.unpack_from(frame)[0]
        if not self._waiting or self._waiting[0][0] != correlation:
            self.end("an answer to what was not asked")
            return
        future = self._waiting.popleft()[1]
        if not future.done():
            future.set_result(frame)

    def end(self, why: str) -> None:
        """Close the connection. Waiting callers get the reason `why`."""
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future = self._waiting.popleft()[1]
            if not future.done():
                future.set_exception(PeerUnavailable(why))


def _header_bytes(request: Any, version: int, body: memoryview) -> int:
    """Return the size of the response header in bytes. Raises Malformed for invalid tags."""
    pos = _CORRELATION.size
    if version not in request.FLEXIBLE:
        return pos
    tags, pos = read_uvarint(body, pos)
    for _ in range(tags):
        _, pos = read_uvarint(body, pos)
        size, pos = read_uvarint(body, pos)
        pos += size
    return pos

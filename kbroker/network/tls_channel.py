"""TLS between a connection and its socket: the handshake, received bytes, sent bytes.

Owns the socket's bytes and the loop's events for the socket. The connection reads and sends through the channel as if
there were no TLS. Never interprets a request. security/tls/session.py contains the TLS protocol itself.

A handshake runs in the turns of long work, one step at a time, so that it delays no other connection. Its time limit is
HANDSHAKE_SECONDS, or connections.max.idle.ms if that is less. It creates no OpenSSL objects before the first byte.
Received bytes are decrypted into the connection's own buffer. Bytes to send are encrypted SEALED_BYTES at a time, after
the socket has accepted the previous bytes; until then ranges of files stay in their files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kbroker.network.outbox import Outbox, Piece, is_range
from kbroker.network.turns import Turns
from kbroker.security.principal import Principal
from kbroker.security.tls.session import Broken, Session

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 30.0
"""The maximum time in seconds from a client's connection to the end of its handshake."""
SEALED_BYTES = 64 * 1024
"""The maximum number of bytes that are encrypted at a time.

A client that does not read its data keeps this memory in use.
"""
_RECEIVED_BYTES = 64 * 1024
"""The maximum number of bytes that are received at a time."""
_HANDSHAKE_BYTES = 16 * 1024
_WASTED_BYTES = 20 * 1024
"""The maximum number of bytes received in one turn without any request bytes.

The bytes may be an incomplete record and some tiny records. Records of one byte take a millisecond for 16 kB.
"""
_UNREAD_BYTES = 64 * 1024
"""The maximum number of bytes of TLS itself (responses to key updates) kept for a client that does not read."""
_AT_ONCE = 1024 * 1024
"""A client that reads immediately is sent at most this number of bytes before other connections have a turn."""
_LEAST_COST = 8 * 1024


class Client(Protocol):
    """The connection that uses a channel."""

    peer: str

    def authenticated(self, principal: Principal) -> None:
        """Set the client's principal after its handshake."""

    def abort(self) -> None:
        """Close the connection immediately."""


class Tls(Protocol):
    """The TLS of a listener (security/tls/listener.py)."""

    def session(self) -> Session: ...

    def principal_of(self, certificate: bytes | None) -> Principal: ...


class TlsPort:
    """The common part of the channels of one listener.

    `report` is called with the address of a client whose handshake failed, and the reason. `seconds` is the time limit
    of a handshake.
    """

    __slots__ = ("loop", "received", "report", "seconds", "tls", "turns")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: Turns,
        tls: Tls,
        report: Callable[[str, str], None],
        seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.loop = loop
        self.turns = turns
        self.tls = tls
        self.report = report
        self.seconds = seconds
        self.received = memoryview(bytearray(_RECEIVED_BYTES))
        """The buffer for received bytes. They are decrypted immediately, so all channels share one buffer."""

    def channel(self, sock: socket.socket, client: Client, done: Callable[[OSError | None], None]) -> TlsChannel:
        """Return the channel of an accepted connection; `done` as in Outbox."""
        return TlsChannel(self, sock, client, done)


class TlsChannel(Outbox):
    """The TLS of one connection.

    The channel replaces the loop (for reading), the socket and the outbox for the connection.
    """

    __slots__ = (
        "_begin", "_callback", "_client", "_ended", "_is_ready", "_port", "_scheduled", "_sealed", "_session", "_timer",
        "_waits_for_turn",
    )  # fmt: skip

    def __init__(
        self, port: TlsPort, sock: socket.socket, client: Client, done: Callable[[OSError | None], None]
    ) -> None:
        super().__init__(port.loop, port.turns, sock, done)
        self._port = port
        self._client: Client | None = client
        self._session: Session | None = None
        self._callback: Callable[[], None] | None = None
        self._is_ready = False
        """Whether the handshake is complete."""
        self._ended = False
        """Whether the client has closed its side of the socket."""
        self._scheduled = False
        """Whether a notification of bytes that are already received is scheduled."""
        self._waits_for_turn = False
        self._sealed: bytes = b""
        """Encrypted bytes to send; the first `_offset` bytes are already sent."""
        self._begin = 0
        """The number of encrypted bytes of the first piece."""
        self._timer: asyncio.TimerHandle | None = port.loop.call_later(port.seconds, self._too_late)

    # --- the loop's methods, as the connection calls them

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever there are bytes to read, after the handshake is complete."""
        self._callback = callback
        self._loop.add_reader(fd, callback if self._is_ready else self._shaken)
        if self._is_ready:
            self._notify_later()

    def remove_reader(self, fd: int) -> None:
        """Stop calling the callback."""
        self._callback = None
        self._loop.remove_reader(fd)

    def _notify_later(self) -> None:
        """Schedule a notification of bytes that are already received, because the poller does not report them."""
        session = self._session
        if not self._scheduled and self._callback is not None and session is not None and session.has_more:
            self._scheduled = True
            self._loop.call_soon(self._notify)

    def _notify(self) -> None:
        self._scheduled = False
        session = self._session
        if self._callback is not None and session is not None and session.has_more:
            self._callback()
            self._notify_later()

    # --- the handshake

    def _shaken(self) -> None:
        """Wait for a turn to process received bytes of the handshake."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._turns.put(self)

    def go_on(self, deadline: float) -> None:
        """Do the next step of the handshake, or send bytes that have waited for a turn."""
        if self._queued:
            super().go_on(deadline)
        if not self._waits_for_turn:
            return
        self._waits_for_turn = False
        if self._client is None or self._callback is None:
            return
        try:
            self._shake()
        except (BlockingIOError, InterruptedError):
            return
        except Broken as err:
            self._refuse(str(err))
        except OSError as err:
            self._refuse(err.strerror or "the connection was lost")
        except Exception:
            log.exception("a handshake")
            self._refuse("it failed")

    def _shake(self) -> None:
        received = self._port.received
        count = self._sock.recv_into(received[:_HANDSHAKE_BYTES])
        client = self._client
        assert client is not None
        if not count:
            if self._session is not None:
                raise Broken("the client closed the connection")
            client.abort()  # the client sent nothing: it probably checked whether the port is open
            return
        if self._session is None:
            self._session = self._port.tls.session()
        session = self._session
        done = session.shake(received[:count])
        if not done:
            self._pass_on()
            return
        principal = self._port.tls.principal_of(session.certificate())
        self._pass_on()
        self._open(client, session, principal)

    def _open(self, client: Client, session: Session, principal: Principal) -> None:
        self._is_ready = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s speaks %s as %s", client.peer, session.describe(), principal)
        client.authenticated(principal)
        if self._callback is not None:
            self.add_reader(self._fd, self._callback)

    def _refuse(self, why: str) -> None:
        client = self._client
        if client is not None:
            reason = "".join(char if char.isprintable() else "?" for char in why)  # may have names from the client
            self._port.report(client.peer, f"the TLS handshake failed: {reason}")
            client.abort()

    def _too_late(self) -> None:
        self._timer = None
        self._refuse(f"it took more than {self._port.seconds:g} s")

    # --- reading

    def recv_into(self, room: memoryview) -> int:
        """Read like a socket: return 0 at the end. Raises BlockingIOError if there are no bytes, or another OSError."""
        session = self._session
        assert session is not None
        filled, size, taken = 0, len(room), 0
        try:
            while filled < size:
                if not session.has_more:
                    # A TLS record may contain one byte or none. Stop early, so that clients with such records do not
                    # delay others.
                    if taken - filled > _WASTED_BYTES:
                        break
                    most = max(size - filled, _HANDSHAKE_BYTES) if 2 * filled > taken else _HANDSHAKE_BYTES
                    count = 0 if self._ended else self._receive(most)
                    if not count:
                        break
                    taken += count
                    session.received(self._port.received[:count])
                filled += session.read_into(room[filled:])
                if session.ended:
                    break
            if session.has_to_send:
                self._pass_on()
        except Broken as err:
            self._lose(str(err))
        self._notify_later()
        if not filled and not self._ended and not session.ended:
            raise BlockingIOError
        return filled

    def _receive(self, most: int) -> int:
        try:
            count = self._sock.recv_into(self._port.received[:most])
        except (BlockingIOError, InterruptedError):
            return 0
        self._ended = not count
        return count

    def _lose(self, why: str) -> None:
        if self._client is not None:
            log.info("closing the connection from %s: TLS: %s", self._client.peer, why)
        raise OSError(f"TLS: {why}") from None

    # --- sending

    @property
    def waiting(self) -> bool:
        """Whether some bytes are not accepted by the kernel yet."""
        return bool(self._sealed or self._pieces)

    @property
    def left(self) -> int:
        """The number of waiting bytes, including the bytes in files."""
        return sum(len(piece) for piece in self._pieces) - self._begin + len(self._sealed) - self._offset

    @property
    def in_memory(self) -> int:
        """The maximum memory in bytes that the waiting pieces use until they are sent, including their encryption."""
        return super().in_memory + (SEALED_BYTES if self.waiting else 0)

    def send(self, data: bytearray) -> None:
        """Send as many bytes as the socket accepts, and keep the rest. Raises OSError if the connection is broken."""
        self.send_pieces([data])

    def send_pieces(self, pieces: list[Piece]) -> None:
        """Send bytes and ranges of files in order. Raises OSError if the connection is broken."""
        waited = self.waiting
        if self._pieces:
            self._pieces.extend(pieces)
        else:
            self._pieces = deque(pieces)
        if not waited:
            self._start()

    def _pass_on(self) -> None:
        """Send the bytes of TLS itself."""
        session = self._session
        assert session is not None
        data = session.to_send()
        if not data:
            return
        if self._sealed:
            self._sealed, self._offset = self._sealed[self._offset :] + data, 0
            if len(self._sealed) > SEALED_BYTES + _UNREAD_BYTES:
                raise Broken("the client does not read TLS messages")
            return
        waited = self.waiting
        self._sealed = data
        if not waited:
            self._start()

    def _start(self) -> None:
        if self._push(self._pieces):
            self._pieces = ()
        else:
            self._wait()

    def _push(self, pieces: deque[Piece] | tuple[()]) -> bool:
        budget = _AT_ONCE
        while budget > 0:
            if not self._sealed:
                if not pieces:
                    return True
                self._seal(pieces)
            sealed, offset = self._sealed, self._offset
            try:
                sent = self._sock.send(memoryview(sealed)[offset:] if offset else sealed)
            except BlockingIOError:
                return False
            budget -= max(sent, _LEAST_COST)
            if offset + sent < len(sealed):
                self._offset = offset + sent
                return False
            self._sealed, self._offset = b"", 0
        return not pieces

    def _seal(self, pieces: deque[Piece]) -> None:
        """Encrypt the next bytes, at most SEALED_BYTES."""
        session = self._session
        assert session is not None
        room = SEALED_BYTES
        try:
            while pieces and room > 0:
                piece, offset = pieces[0], self._begin
                size = min(len(piece) - offset, room)
                if is_range(piece):
                    data = os.pread(piece.fd, size, piece.position + offset)
                    if len(data) != size:
                        raise OSError("a segment is shorter than the range to send")
                    session.write(data)
                else:
                    session.write(memoryview(piece)[offset : offset + size])
                room -= size
                if offset + size == len(piece):
                    pieces.popleft()
                    self._begin = 0
                else:
                    self._begin = offset + size
        except Broken as err:
            raise OSError(f"TLS: {err}") from None
        self._sealed, self._offset = session.to_send(), 0

    def close(self) -> None:
        """Send only the alert that ends TLS, and stop calling `done`. The socket stays open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send_alert()
        self._sealed = b""
        super().close()
        self._client = self._callback = None

    def _send_alert(self) -> None:
        """Send an alert that ends TLS or reports an error, if no bytes wait before it. Never wait for the socket."""
        session, self._session = self._session, None
        if session is not None and not self.waiting:
            session.close()
            data = session.to_send()
            if data:
                with contextlib.suppress(OSError):
                    self._sock.send(data)

"""One client's connection: the only module that sees a transport.

Owns the bytes of a connection: cutting the stream into frames, keeping answers in the order of requests, pausing a
client that sends faster than it is served. One request of a connection is worked on at a time (as Kafka mutes a
channel), so a parked Fetch or JoinGroup holds back what is behind it. Never knows what a request means.

Memory: all connections receive into one buffer that the loop owns; only a frame that is not complete yet is kept by its
connection, in a buffer that grows with the bytes that really arrived, never with the length that a client claims.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any, Protocol

from kbroker.dispatch import Dispatcher, Pending
from kbroker.dispatch_errors import CloseConnection
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.compiler import Spill
from kbroker.transfer import SENDFILE_BYTES, Transfer

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
_FIRST_GROWTH = 64 * 1024
_BACKLOG_BYTES = 64 * 1024
_SIZE = struct.Struct(">i")


class Owner(Protocol):
    """What a connection needs of its server."""

    dispatcher: Dispatcher
    max_request_bytes: int
    receive_buffer: memoryview

    def opened(self, connection: Connection) -> RequestContext | None:
        """Admit a connection (None: it is over a limit) and give it its context."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""


class Connection(asyncio.BufferedProtocol):
    """A protocol object of asyncio; see the module's docstring."""

    __slots__ = (
        "_closing", "_context", "_dispatcher", "_ending", "_frame", "_frame_filled", "_loop", "_mark",
        "_max_request_bytes", "_out", "_owner", "_parked", "_paused", "_sending", "_spill", "_transfer", "_transport",
        "_write_paused", "active", "idle_since", "listener", "peer",
    )  # fmt: skip

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, listener: str = "PLAINTEXT") -> None:
        self._owner = owner
        self.listener = listener
        self._loop = loop
        self._dispatcher = owner.dispatcher
        self._max_request_bytes = owner.max_request_bytes
        self._transport: Any = None
        self._context: Any = None
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._out = bytearray()
        self._spill: Spill = []
        self._parked: asyncio.Future[Any] | None = None
        self._sending = False
        self._paused = False
        self._write_paused = False
        self._closing = False
        self._ending = False
        self._transfer: Transfer | None = None
        self._mark = (0, 0)
        self.active = True
        self.idle_since = 0.0
        self.peer = ""

    # --- what the loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if name else "?"
        self._context = self._owner.opened(self)
        if self._context is None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        self._closing = True
        if self._parked is not None:
            self._parked.cancel()
        if self._transfer is not None:
            self._transfer.close()
        self._frame = None
        self._spill = []
        self._owner.closed(self)

    def get_buffer(self, sizehint: int) -> Any:  # noqa: ARG002 - asyncio calls it so
        frame = self._frame
        if frame is None or self.busy:
            return self._owner.receive_buffer
        return memoryview(frame)[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        if self._closing or self._ending:
            return
        if self.busy:
            self._keep(self._owner.receive_buffer[:nbytes])
            return
        if self._frame is None:
            self._consume(self._owner.receive_buffer[:nbytes])
            return
        self._frame_filled += nbytes
        self._continue_frame()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._resume()

    # --- requests

    @property
    def busy(self) -> bool:
        """True while what was asked is not fully answered: nothing more is read from the client's stream."""
        return self._parked is not None or self._sending or self._write_paused

    def has_moved(self) -> bool:
        """Tell whether anything came in or went out since the last call, or a request is being worked on.

        A client that asked and never takes its answers does not count as active: what it holds back has to go some day.
        """
        mark = (self._transport.get_write_buffer_size(), self._transfer.left if self._transfer is not None else 0)
        moved = self.active or self._parked is not None or mark != self._mark
        self.active, self._mark = False, mark
        return moved

    def close(self) -> None:
        """End the connection once the request being worked on is answered, and what was answered has left."""
        if self._parked is not None or self._sending:
            self._ending = True
        elif not self._closing:
            self._closing = True
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._closing = True
        self._transport.abort()

    def _consume(self, data: memoryview) -> None:
        """Run every whole frame in `data`; keep the rest."""
        position, end = 0, len(data)
        run, context, out, spill = self._dispatcher.run, self._context, self._out, self._spill
        try:
            while end - position >= 4:
                (size,) = _SIZE.unpack_from(data, position)
                if not 0 <= size <= self._max_request_bytes:
                    raise CloseConnection(
                        f"a frame of {size} bytes (socket.request.max.bytes={self._max_request_bytes})"
                    )
                stop = position + 4 + size
                if stop > end:
                    break
                pending = run(context, data[position + 4 : stop], out, spill)
                position = stop
                if pending is not None:
                    self._park(pending)
                if spill or pending is not None or len(out) > _BACKLOG_BYTES:
                    self._flush()
                    out, spill = self._out, self._spill
                    if self.busy or self._closing:
                        break
        except CloseConnection as err:
            self._fail(err)
            return
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()
            return
        if out:
            self._flush()
        if position < end and not self._closing:
            self._keep(data[position:])

    def _keep(self, data: memoryview) -> None:
        """Keep bytes that cannot be run yet: the start of a frame, or requests behind one that is being worked on."""
        if self._frame is None:
            self._frame = bytearray(max(len(data), self._wanted(data)))
            self._frame_filled = 0
        stop = self._frame_filled + len(data)
        if stop > len(self._frame):
            self._frame = self._frame + bytes(stop - len(self._frame))  # a new object: the old may still be viewed
        self._frame[self._frame_filled : stop] = data
        self._frame_filled = stop
        if self.busy and stop >= _BACKLOG_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _wanted(self, data: memoryview) -> int:
        """Return how large a buffer to begin with: the frame's size, as far as the claim deserves trust yet."""
        if len(data) < 4:
            return 4
        (size,) = _SIZE.unpack_from(data)
        return int(min(4 + size, max(_FIRST_GROWTH, 2 * len(data))))

    def _continue_frame(self) -> None:
        """More of an incomplete frame has arrived: run it when whole, else make room for what is to come."""
        frame, filled = self._frame, self._frame_filled
        assert frame is not None
        if filled < 4:
            return
        (size,) = _SIZE.unpack_from(frame)
        if not 0 <= size <= self._max_request_bytes:
            self._fail(_bad_size(size, self._max_request_bytes))
        elif filled >= 4 + size:
            self._frame = None
            self._consume(memoryview(frame)[:filled])
        elif filled == len(frame):
            self._frame = frame + bytes(min(4 + size - filled, max(filled, _FIRST_GROWTH)))

    def _park(self, pending: Pending) -> None:
        future = asyncio.ensure_future(pending.awaitable)
        self._parked = future
        future.add_done_callback(lambda done: self._unpark(pending, done))

    def _unpark(self, pending: Pending, done: asyncio.Future[Any]) -> None:
        self._parked = None
        if self._closing:
            if not done.cancelled():
                done.exception()
            return
        if done.cancelled():
            self.close()
            return
        error = done.exception()
        try:
            self._dispatcher.finish(pending, None if error else done.result(), error, self._out, self._spill)
        except CloseConnection as err:
            self._fail(err)
            return
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()
            return
        self._flush()
        self._resume()

    def _resume(self) -> None:
        """Go on with what arrived while a request was being worked on."""
        if self._ending and not self._sending:
            self.close()
        if self.busy or self._closing:
            return
        if self._frame is not None:
            frame, filled = self._frame, self._frame_filled
            self._frame = None
            self._consume(memoryview(frame)[:filled])
        if self._paused and not self.busy and not self._closing:
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, err: CloseConnection) -> None:
        log.info("closing the connection from %s: %s", self.peer, err)
        self._frame = None
        if self._out or self._spill:
            self._flush()
        self.close()

    # --- answers

    def _flush(self) -> None:
        """Send what is answered. `_sending` is set while a file transfer has not ended."""
        out, spill = self._out, self._spill
        if not out:
            return
        self._out = bytearray()
        if not spill:
            self._transport.write(out)
            return
        self._spill = []
        pieces: list[Any] = []
        by_file = False
        position = 0
        gathered = bytearray()
        for at, piece in spill:
            gathered += memoryview(out)[position:at]
            position = at
            if len(piece) >= SENDFILE_BYTES and hasattr(piece, "fd"):
                pieces += [gathered, piece]
                gathered = bytearray()
                by_file = True
            else:
                gathered += piece.view() if hasattr(piece, "view") else piece
        gathered += memoryview(out)[position:]
        if gathered:
            pieces.append(gathered)
        if by_file and not self._transport.get_write_buffer_size():
            self._send_files(pieces)
        else:
            for piece in pieces:
                self._transport.write(piece.view() if hasattr(piece, "view") else piece)

    def _send_files(self, pieces: list[Any]) -> None:
        try:
            if self._transfer is None:
                self._transfer = Transfer(self._loop, self._transport.get_extra_info("socket").fileno())
            self._sending = not self._transfer.send(pieces, self._sent)
        except OSError as err:
            log.info("closing the connection from %s: %s", self.peer, err)
            self._closing = True
            self._transport.abort()

    def _sent(self, ok: bool) -> None:
        self._sending = False
        if not ok:
            self._closing = True
            self._transport.abort()
            return
        self._resume()


def _bad_size(size: int, limit: int) -> CloseConnection:
    return CloseConnection(f"a frame of {size} bytes (socket.request.max.bytes={limit})")

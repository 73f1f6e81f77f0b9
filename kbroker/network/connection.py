"""One client's connection: the only module that sees a transport.

Owns what is read and written: requests in the order in which they came, their answers in the same order, and pausing a
client that sends faster than it is served. One request of a connection is worked on at a time (as Kafka mutes a
channel), so a parked Fetch or JoinGroup holds back what is behind it. Never knows what a request means.

Memory: all connections receive into one buffer that the loop owns; only what cannot be used yet is kept by a connection
(frames.py).
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Any, Protocol

from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.network.dispatch import Dispatcher, Pending
from kbroker.network.frames import BadFrame, FrameBuffer
from kbroker.network.sendfile import SENDFILE_BYTES, Transfer
from kbroker.protocol.compiler import Spill

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 * 1024
_BACKLOG_BYTES = 64 * 1024


class State(Enum):
    """What a connection does.

    SERVING   runs requests as they come; waits only for the client
    WORKING   one request has no answer yet: what comes is kept
    SENDING   an answer is leaving by sendfile: what comes is kept
    ENDING    as one of these two, and closes then: what comes is dropped
    CLOSED    what comes is dropped

        SERVING -> WORKING -> SERVING | SENDING        SERVING -> SENDING -> SERVING
        WORKING | SENDING -> ENDING -> CLOSED          any -> CLOSED
    """

    SERVING = 1
    WORKING = 2
    SENDING = 3
    ENDING = 4
    CLOSED = 5


# Looked up once: an enum's member costs more than a global name.
_SERVING, _WORKING, _SENDING, _ENDING, _CLOSED = State


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
        "_context", "_dispatcher", "_frames", "_full", "_loop", "_mark", "_out", "_owner", "_parked", "_spill",
        "_transfer", "_transport", "active", "idle_since", "listener", "peer", "state",
    )  # fmt: skip

    def __init__(self, owner: Owner, loop: asyncio.AbstractEventLoop, listener: str = "PLAINTEXT") -> None:
        self._owner = owner
        self.listener = listener
        self._loop = loop
        self._dispatcher = owner.dispatcher
        self._frames = FrameBuffer(owner.max_request_bytes)
        self._transport: Any = None
        self._context: Any = None
        self._out = bytearray()
        self._spill: Spill = []
        self.state = _SERVING
        self._full = False  # the transport holds as much as it should: the client does not take its answers
        self._parked: asyncio.Future[Any] | None = None
        self._transfer: Transfer | None = None
        self._mark = (0, 0)
        self.active = True
        self.idle_since = 0.0
        self.peer = ""

    # --- what the loop calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        name = transport.get_extra_info("peername")
        # A listener of both families has IPv4's addresses in IPv6's form.
        self.peer = f"{name[0].removeprefix('::ffff:')}:{name[1]}" if name else "?"
        self._context = self._owner.opened(self)
        if self._context is None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        self.state = _CLOSED
        if self._parked is not None:
            self._parked.cancel()
        if self._transfer is not None:
            self._transfer.close()
        self._frames.take()
        self._spill = []
        self._owner.closed(self)

    def get_buffer(self, sizehint: int) -> Any:  # noqa: ARG002 - asyncio calls it so
        if self._frames.kept is None or self.busy:
            return self._owner.receive_buffer
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.active = True
        state = self.state
        if state is _CLOSED or state is _ENDING:
            return
        if state is not _SERVING or self._full:
            self._keep(self._owner.receive_buffer[:nbytes])
        elif self._frames.kept is None:
            self._consume(self._owner.receive_buffer[:nbytes])
        else:
            try:
                data = self._frames.received(nbytes)
            except BadFrame as err:
                self._fail(err)
                return
            if data is not None:
                self._consume(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._resume()

    # --- requests

    @property
    def busy(self) -> bool:
        """True while what was asked is not fully answered: nothing more is read from the client's stream."""
        return self.state is not _SERVING or self._full

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
        if self.state is _CLOSED:
            return
        if self._parked is not None or (self._transfer is not None and self._transfer.waiting):
            self.state = _ENDING
        else:
            self.state = _CLOSED
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.state = _CLOSED
        self._transport.abort()

    def _consume(self, data: memoryview) -> None:
        """Run every whole frame in `data`; keep the rest."""
        frames = self._frames
        run, context, out, spill = self._dispatcher.run, self._context, self._out, self._spill
        try:
            for frame in frames.cut(data):
                pending = run(context, frame, out, spill)
                if pending is not None:
                    self._park(pending)
                if spill or pending is not None or len(out) > _BACKLOG_BYTES:
                    self._flush()
                    out, spill = self._out, self._spill
                    if self.busy:
                        break
        except (CloseConnection, BadFrame) as err:
            self._fail(err)
            return
        except Exception:
            log.exception("closing the connection from %s", self.peer)
            self.abort()
            return
        if out:
            self._flush()
        if frames.consumed < len(data) and self.state is not _CLOSED:
            self._keep(data[frames.consumed :])

    def _keep(self, data: memoryview) -> None:
        self._frames.keep(data)
        if self._frames.filled >= _BACKLOG_BYTES and self.busy and self._transport.is_reading():
            self._transport.pause_reading()

    def _park(self, pending: Pending) -> None:
        future = asyncio.ensure_future(pending.awaitable)
        self._parked = future
        self.state = _WORKING
        future.add_done_callback(lambda done: self._unpark(pending, done))

    def _unpark(self, pending: Pending, done: asyncio.Future[Any]) -> None:
        self._parked = None
        if self.state is _CLOSED:
            if not done.cancelled():
                done.exception()
            return
        if done.cancelled():
            self.close()
            return
        if self.state is _WORKING:
            self.state = _SERVING
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
        if self.state is _ENDING:
            self.close()
        if self.busy:
            return
        data = self._frames.take()
        if data is not None:
            self._consume(data)
        if not self.busy and not self._transport.is_reading():
            self._transport.resume_reading()

    def _fail(self, err: Exception) -> None:
        log.info("closing the connection from %s: %s", self.peer, err)
        self._frames.take()
        if self._out or self._spill:
            self._flush()
        self.close()

    # --- answers

    def _flush(self) -> None:
        """Send what is answered."""
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
            if not self._transfer.send(pieces, self._sent) and self.state is _SERVING:
                self.state = _SENDING
        except OSError as err:
            log.info("closing the connection from %s: %s", self.peer, err)
            self.abort()

    def _sent(self, ok: bool) -> None:
        if not ok:
            self.abort()
            return
        if self.state is _SENDING:
            self.state = _SERVING
        self._resume()

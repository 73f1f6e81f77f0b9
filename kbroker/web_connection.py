"""HTTP connections of the web servers: uvicorn's, which also close when their client stalls.

Owns the time limits that uvicorn lacks: for a request's head, for its body, and for data that the client does not read.
Without them a few idle clients would occupy all connections of a server. A client that reads slowly may continue.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S: Final = 5.0
"""The maximum time in seconds until a request's head is complete.

The time begins when the connection is made, or with the head's first byte.
"""
BODY_S: Final = 30.0
"""The maximum time in seconds from a request's head until its body is complete."""
READER_S: Final = 30.0
"""The maximum time in seconds for which a client may leave data unread."""
_UNSENT: Final = 256 * 1024
"""The maximum number of unsent bytes that the kernel keeps for each connection."""


class TimedConnection(asyncio.Protocol):
    """The time limits of a connection, for one of uvicorn's classes."""

    cycle: Any
    """The newest request, and its answer."""
    pipeline: Any = ()
    """The requests whose turn has not come. The last of them is the newest request."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._awaited: str | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._socket = _of_socket(self.transport)
        # By default less than 64 kB may stay unread for ever. The buffer of TLS pauses at its limit, not above.
        is_plain = self._socket is self.transport
        self.transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)
        self.follow_request()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        self.follow_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop(self._request_timer)
        self._stop(self._reader_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Continue to write: the client has read the waiting data."""
        self._stop(self._reader_timer)
        super().resume_writing()

    def follow_request(self) -> None:
        """Begin or end the wait for the next part of a request. A request that waits for its turn has no such wait."""
        awaited: str | None = "head"
        if self.cycle is not None and not self.cycle.response_complete:
            awaited = "body" if self.cycle.more_body and not self.pipeline else None
        if awaited == self._awaited:
            return
        self._stop(self._request_timer)
        self._awaited = awaited
        if awaited == "head":
            self._request_timer = self.loop.call_later(HEAD_S, self._close)
        elif awaited == "body":
            self._request_timer = self.loop.call_later(BODY_S, self.transport.abort)

    def end_wait(self) -> None:
        """End the wait for a part of a request; `follow_request` begins another wait."""
        self._stop(self._request_timer)
        self._awaited = None

    def follow_answer(self) -> None:
        """End the wait for a request that is answered; begin the wait for a request that was queued and begins now."""
        self.end_wait()
        if not self.cycle.response_complete:
            self.follow_request()

    def _close(self) -> None:
        """Close cleanly, because a browser keeps connections that it has not used yet."""
        close: Any = getattr(self, "timeout_keep_alive_handler")  # noqa: B009 - uvicorn's, in both classes
        close()

    def _wait_for_reader(self) -> None:
        left = self._socket.get_write_buffer_size()

        def check() -> None:
            if self._socket.get_write_buffer_size() < left:
                self._wait_for_reader()
            else:
                self._socket.abort()

        self._reader_timer = self.loop.call_later(READER_S, check)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def show_readers(listening: socket.socket) -> None:
    """Let the connections of a listening socket detect that a client reads, soon after it does.

    By default, a kernel buffers megabytes, and accepts no more data until it has sent a third of them. A client that
    had read less than that within the limit seemed to read nothing.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux has this option
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


def _of_socket(transport: asyncio.Transport) -> asyncio.Transport:
    """Return the transport that sends. A TLS transport passes its data on only when most earlier data is sent."""
    tls = getattr(transport, "_ssl_protocol", None)
    return getattr(tls, "_transport", None) or transport


class TimedH11Connection(TimedConnection, H11Protocol):
    """A connection whose parser is written in Python; httptools is not part of the extras that use it."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.follow_answer()

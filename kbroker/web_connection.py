"""The HTTP connections of the web servers: uvicorn's connections, with time limits for clients that stall.

Owns the time limits that uvicorn does not have: for a request's head, for its body, and for data that the client does
not read. Without these limits, a few idle clients would occupy all connections of a server. A client that reads slowly
may continue.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S: Final = 5.0
"""The seconds for which a request's head may be incomplete, from the connection's start or the head's first byte."""
BODY_S: Final = 30.0
"""The seconds for which a request's body may be incomplete, from the end of the head."""
READER_S: Final = 30.0
"""The seconds for which a client may leave data unread."""
_UNSENT: Final = 256 * 1024
"""The maximum number of unsent bytes that the kernel may buffer for each connection."""


class TimedConnection(asyncio.Protocol):
    """Adds time limits to a connection. A subclass also inherits from one of uvicorn's protocol classes."""

    cycle: Any
    """The newest request and its answer."""
    pipeline: Any = ()
    """The requests that wait for their turn. The newest request is the last one."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._awaited: str | None = None
        self._request_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._socket = _of_socket(self.transport)
        # With the default limits, less than 64 kB could stay unread forever. The TLS buffer pauses at its limit, not
        # above it.
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
        """Wait for the client to read."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Continue to write, because the client has read the waiting data."""
        self._stop(self._reader_timer)
        super().resume_writing()

    def follow_request(self) -> None:
        """Begin or end the wait for the next part of a request. Ignore a request that waits for its turn."""
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
        """End the wait for a part of a request. `follow_request` begins the next wait."""
        self._stop(self._request_timer)
        self._awaited = None

    def follow_answer(self) -> None:
        """End the wait for the answered request. Begin the wait for a request that arrived before and starts now."""
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
    """Configure a listening socket so that its connections soon notice when a client reads.

    By default a kernel buffers megabytes, and accepts no more data until it has sent a third of the buffer. A client
    that had read less than this third within the time limit seemed to read nothing.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # available on Linux
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


def _of_socket(transport: asyncio.Transport) -> asyncio.Transport:
    """Return the transport of the socket. The TLS transport passes its data on only when most of it is sent."""
    tls = getattr(transport, "_ssl_protocol", None)
    return getattr(tls, "_transport", None) or transport


class TimedH11Connection(TimedConnection, H11Protocol):
    """A connection whose parser is written in Python. The extras that use it do not include httptools."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.follow_answer()

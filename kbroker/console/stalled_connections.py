"""HTTP connections that are closed when their client stalls: it reads nothing, or never completes a request.

Owns the time limits. Without them a few idle clients would hold all the connections of the console. A client that reads
slowly may continue. A request is small, so all of it must arrive within its time limit.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

READER_S: Final = 30.0
"""How many seconds a client may leave data unread."""
REQUEST_S: Final = 30.0
"""How many seconds a request may take, from its first byte (or the connection's start) to its last byte."""


class TimedProtocol(H11Protocol):
    """A connection of uvicorn with two timers."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._reader_timer: asyncio.TimerHandle | None = None
        self._request_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of a request."""
        super().connection_made(transport)
        self._request_timer = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; the timer stops when the request is complete."""
        super().data_received(data)
        whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if whole:
            self._stop_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timer of a reader."""
        super().pause_writing()
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        left = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < left:
                self._wait_for_reader()
            else:
                self.transport.abort()

        self._reader_timer = self.loop.call_later(READER_S, check)

    def resume_writing(self) -> None:
        """Continue to write: the client has read most of the waiting data."""
        self._stop_reader_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both timers."""
        self._stop_reader_timer()
        self._stop_request_timer()
        super().connection_lost(exc)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

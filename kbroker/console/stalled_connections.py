"""HTTP connections that are cut off when their other side stands still: it reads nothing, or never ends what it asks.

Owns how long that may be. Without it a few who do nothing would hold all the connections that the console has. Who is
slow, and takes or sends something at least, is left alone, but for the head and the body of a request, which are small.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

READER_S: Final = 30.0
"""For so long nothing may be taken of what waits to be read."""
REQUEST_S: Final = 30.0
"""So long a request may take to come, from the first byte or the connection's beginning to the last byte."""


class HurriedProtocol(H11Protocol):
    """A connection of uvicorn's, with two clocks."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._reading: asyncio.TimerHandle | None = None
        self._asking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._asking = self.loop.call_later(REQUEST_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take some of a request; the clock of one that is whole stops."""
        super().data_received(data)
        whole = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if whole:
            self._asked()
        elif self._asking is None:
            self._asking = self.loop.call_later(REQUEST_S, self.transport.abort)

    def pause_writing(self) -> None:
        """Begin to wait for somebody who reads."""
        super().pause_writing()
        self._wait_for_reader()

    def _wait_for_reader(self) -> None:
        left = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() < left:
                self._wait_for_reader()
            else:
                self.transport.abort()

        self._reading = self.loop.call_later(READER_S, look)

    def resume_writing(self) -> None:
        """Go on: most of what waited was read."""
        self._read()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop both clocks."""
        self._read()
        self._asked()
        super().connection_lost(exc)

    def _asked(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

"""One connection to the control API: uvicorn's, which is closed where no request comes.

Owns how long the head of a request may take. uvicorn itself bounds the time between two requests, and none before the
first: connections that say nothing would keep all others out. Never looks at what is asked.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S: Final = 5.0
"""How long after the connection was made, or after a request has begun to come, its head may be incomplete."""


class Connection(H11Protocol):
    """A connection; it ends where it does not ask."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _follow(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self.timeout_keep_alive_handler)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

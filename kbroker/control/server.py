"""The control API's server: web_server.py, with a limit on silent connections.

The server has a thread with its own event loop. In the broker's loop, its parsing, checking and writing would delay
requests of Kafka's clients, and most operations could not wait there for the broker. The two threads take turns with
the interpreter's lock. No single call into C takes long, because bodies are small and answers are written piece by
piece. The lock changes hands after half a millisecond instead of Python's default of five.

Measured while long lists were read one after the other: the median of a Metadata request was 0.7 ms with this interval,
and 5.3 ms with Python's. With the server in the broker's loop the median was 5.3 ms, and the slowest of a hundred
requests took twice as long as in either other case.

A connection of uvicorn is closed if no request arrives. uvicorn itself limits the time between two requests, but not
the time before the first one, so silent connections would keep all others out.

It uses Starlette and uvicorn instead of FastAPI. FastAPI needs pydantic, and takes 0.5 s and 25 MB to load instead of
0.13 s and 13 MB. Its checks and its document come here from a table of operations (values.py, document.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Final, Self

from uvicorn.protocols.http.h11_impl import H11Protocol

from kbroker.control.application import AT_ONCE, application
from kbroker.control.known_faults import KnownFaults
from kbroker.control.known_snapshots import KnownSnapshots
from kbroker.control.operations import Control
from kbroker.control.subject import Subject
from kbroker.web_server import WebServer

HEAD_S: Final = 5.0
"""How many seconds a request's head may be incomplete after the connection was made, or after its first byte."""


class Connection(H11Protocol):
    """A connection that the server closes if no request arrives in time."""

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


CONNECTIONS: Final = 100
"""The most connections at once; more are answered with 503."""
_THREADS: Final = 2 * AT_ONCE + 8
"""One thread for each turn, and some for readers of streams; Python's default is six on two processors."""
_TURN_S: Final = 0.0005
_LARGEST_HEAD: Final = 16 * 1024
log = logging.getLogger(__name__)


class ControlServer(WebServer):
    """Serves the control API of one broker on a listening socket, until `stop`, also as a context manager.

    The broker's own thread must not stop it: a running operation may be waiting for that thread.
    """

    def __init__(self, subject: Subject, listening: socket.socket, *, public: bool = False) -> None:
        """`public` admits requests by any host name; others only by an address or localhost."""
        self._control = Control(subject, KnownFaults(subject.faults), KnownSnapshots())
        super().__init__(
            application(self._control, public=public),
            listening,
            "control API",
            log,
            self._control.ending.set,
            protocol=Connection,
            connections=CONNECTIONS,
            largest_head=_LARGEST_HEAD,
            threads=_THREADS,
        )
        self._turn_s = sys.getswitchinterval()

    def start(self) -> Self:
        """Serve, and shorten the turns of the interpreter's threads."""
        sys.setswitchinterval(min(self._turn_s, _TURN_S))
        return super().start()

    def stop(self) -> None:
        """Stop, restore the turns, and delete the snapshots."""
        super().stop()
        sys.setswitchinterval(self._turn_s)
        self._control.snapshots.close()

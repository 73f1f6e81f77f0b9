"""The control API's server: uvicorn in a thread of its own, with an event loop of its own.

Owns the thread. It does not share the broker's loop, although that is asyncio as well: all parsing, checking and
writing there would delay requests of Kafka's clients, and most operations wait for the broker anyway, which its own
loop cannot. A thread takes the interpreter's lock in turns with the broker's. No single call into C takes long (bodies
are small, answers are written piece by piece), and the lock changes hands after half a millisecond instead of Python's
five. While long lists were read one after the other, the median of a Metadata request was 0.7 ms with that, and 5.3 ms
without it; 5.3 ms also in the broker's own loop, where the slowest of a hundred took twice as long as either. Without
requests, uvicorn wakes up ten times a second.

A connection is uvicorn's, which is closed if no request arrives: uvicorn itself limits the time between two requests,
but not before the first, and silent connections would keep all others out.

Starlette and uvicorn, and not FastAPI: that needs pydantic, and takes 0.5 s and 25 MB to load instead of 0.13 s and
13 MB, for checks and a document which a table of operations provides as well (values.py, document.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from kbroker.control.application import AT_ONCE, application
from kbroker.control.known_faults import KnownFaults
from kbroker.control.known_snapshots import KnownSnapshots
from kbroker.control.operations import Control
from kbroker.control.subject import Subject
from kbroker.local_http import url_of

HEAD_S: Final = 5.0
"""How long the head may be incomplete after the connection was made, or after a request began to arrive."""


class Connection(H11Protocol):
    """A connection that closes without a request."""

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
"""One for each turn, and some for followers: Python's default is six on two processors."""
_TURN_S: Final = 0.0005
_LARGEST_HEAD: Final = 16 * 1024
_STOP_S: Final = 3
_PATIENCE_S: Final = 20.0
log = logging.getLogger(__name__)


class ControlServer:
    """Serves the control API of one broker on a listening socket, until `stop`, also as a context manager."""

    def __init__(self, subject: Subject, listening: socket.socket, *, public: bool = False) -> None:
        """`public` admits requests by any host name: only addresses and localhost are this machine's own for sure."""
        self._socket = listening
        self.url = url_of(listening)
        """Its address, as "http://127.0.0.1:9690"."""
        self._control = Control(subject, KnownFaults(subject.faults), KnownSnapshots())
        config = uvicorn.Config(
            application(self._control, public=public),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=Connection,
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_graceful_shutdown=_STOP_S,
        )
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="kbroker-control", daemon=True)
        self._turn_s = sys.getswitchinterval()

    def start(self) -> Self:
        """Serve; the socket already listens, so that early clients are not refused."""
        sys.setswitchinterval(min(self._turn_s, _TURN_S))
        self._thread.start()
        return self

    def stop(self) -> None:
        """End running requests and the thread; not from the broker's own thread, for which an answer may wait."""
        if not self._thread.is_alive():
            self._socket.close()
            return
        self._server.should_exit = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended on its own
                loop.call_soon_threadsafe(self._control.ending.set)
        self._thread.join(_PATIENCE_S)
        sys.setswitchinterval(self._turn_s)
        self._control.snapshots.close()
        if self._thread.is_alive():
            log.warning("the control API did not stop within %.0f s", _PATIENCE_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the control API has ended")
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, "kbroker-control"))
        await self._server.serve(sockets=[self._socket])

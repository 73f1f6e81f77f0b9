"""The console's server: uvicorn with an event loop of its own, in a thread.

Owns the socket, TLS, and the order of a stop: streams first, then the server, then the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import uvicorn

from kbroker.admin.connection import Connection
from kbroker.console.application import application
from kbroker.console.console import Console, Settings
from kbroker.console.decoding.schemas import Schemas
from kbroker.console.stalled_connections import HurriedProtocol
from kbroker.local_http import url_of

CONNECTIONS: Final = 200
_LARGEST_HEAD: Final = 32 * 1024
_STOP_S: Final = 3
_PATIENCE_S: Final = 20.0
log = logging.getLogger(__name__)


class ConsoleServer:
    """Serves a console on a listening socket until `stop`, also as a context manager."""

    def __init__(
        self,
        connection: Connection,
        listening: socket.socket,
        settings: Settings,
        *,
        schemas: Path | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        self._socket = listening
        port = int(listening.getsockname()[1])
        self.url = url_of(listening, "http" if tls is None else "https")
        """Its address, as "http://127.0.0.1:8080"."""
        settings = replace(settings, port=port, secure=tls is not None)
        self.console = Console(connection, settings, Schemas(schemas))
        config = uvicorn.Config(
            application(self.console),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=HurriedProtocol,
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
        config.load()  # an unreadable certificate is reported before anything is served
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="kbroker-console", daemon=True)

    def start(self) -> Self:
        """Serve in a thread; the socket already listens, so that early clients are not refused."""
        self.console.sampler.start()
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop, and release all resources."""
        self._end()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                log.warning("the console did not stop within %.0f s", _PATIENCE_S)
        self.console.close()
        self._socket.close()

    def serve_until(self, wait: Callable[[], None]) -> None:
        """Serve until `wait` returns or raises."""
        with self:
            wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self) -> None:
        self._server.should_exit = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended on its own
                loop.call_soon_threadsafe(self.console.end)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the console has ended")

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve(sockets=[self._socket])

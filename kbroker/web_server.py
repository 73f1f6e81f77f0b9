"""A web server in a thread with its own event loop: uvicorn, for the control API, the web console and the registry.

Owns the thread, and the order of a stop: first running requests and streams, then the server, then the socket. Without
requests, uvicorn wakes up ten times a second.

In the broker's loop, a server's parsing, checks and writes would delay requests of Kafka clients, and most of its work
could not wait there for the broker. The two threads share the interpreter's lock. With `beside_broker` they switch
every 0.5 ms (`ShortTurns`). This was measured while long lists were read one after another. The median time of a
Metadata request was 0.7 ms with this interval, and 5.3 ms with Python's interval. With the server in the broker's loop,
the median was 5.3 ms, and the slowest of a hundred requests took twice as long as in both other cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, cast

import uvicorn

from kbroker.local_http import url_of
from kbroker.long_work import ShortTurns
from kbroker.web_connection import HEAD_S, TimedConnection, show_readers

_STOP_S: Final = 3
_PATIENCE_S: Final = 20.0


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that limits a TLS handshake to the time of a request's head, not to the default of a minute."""

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HEAD_S)
        return await super().create_server(*args, **options)


class WebServer:
    """Serves an ASGI application on a listening socket until `stop`. It is also a context manager."""

    def __init__(
        self,
        app: Any,
        listening: socket.socket,
        name: str,
        log: logging.Logger,
        ending: Callable[[], None],
        *,
        protocol: Callable[..., TimedConnection],
        connections: int,
        largest_head: int,
        threads: int | None = None,
        beside_broker: bool = False,
        tls: tuple[str, str] | None = None,
    ) -> None:
        """Create the server.

        When the server stops, it calls `ending` in its loop; `ending` must end running requests. If there are more than
        `connections` concurrent connections, further connections get the status 503. `threads` is the number of threads
        for `asyncio.to_thread` (by default Python's own number). `beside_broker` shortens the turns of the
        interpreter's threads while the server runs. `tls` are the paths of the certificate and its key. Raises OSError
        if these files cannot be read.
        """
        show_readers(listening)
        self._socket = listening
        self._name = name
        self._log = log
        self._ending = ending
        self._threads = threads
        self._beside_broker = beside_broker
        self._short_turns: ShortTurns | None = None
        self.url = url_of(listening, "http" if tls is None else "https")
        """The server's URL, like "http://127.0.0.1:9690"."""
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=cast("type[TimedConnection]", protocol),
            ws="none",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=connections,
            h11_max_incomplete_event_size=largest_head,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
        if tls is not None:
            config.load()  # loaded now, so that an unreadable certificate is reported before the server starts
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=f"kbroker-{name.split(maxsplit=1)[0]}", daemon=True)

    def start(self) -> Self:
        """Serve in a thread. The socket already listens, so that early clients are not refused."""
        self._thread.start()
        if self._beside_broker:
            self._short_turns = ShortTurns()
        return self

    def stop(self) -> None:
        """End running requests and the thread. A thread that a request may be waiting for must not call this."""
        self._server.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the thread has ended on its own
                self._loop.call_soon_threadsafe(self._ending)
        if self._thread.is_alive():
            self._thread.join(_PATIENCE_S)
            if self._thread.is_alive():
                self._log.warning("the %s did not stop within %.0f s", self._name, _PATIENCE_S)
        self._socket.close()
        if self._short_turns is not None:
            self._short_turns.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_Loop) as runner:
                runner.run(self._serve())
        except Exception:  # noqa: BLE001 - logged, and the thread ends
            self._log.exception("the %s has ended", self._name)
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._threads is not None:
            self._loop.set_default_executor(ThreadPoolExecutor(self._threads, self._thread.name))
        await self._server.serve(sockets=[self._socket])

"""The HTTP server of metrics and health: one thread that accepts connections, and one thread for each connection.

Owns the socket, the threads and the form of the answers. The server does not run in the broker's event loop, so a
client that sends slowly, or never reads its answer, does not block the loop. The loop only collects values, in pieces
(collection.py). The connection's thread converts them to text. Never changes the broker.

The number of connections is limited. Beyond the limit, a new connection replaces the oldest connection, so that idle
clients cannot block others.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

from kbroker.broker.base_node import Node
from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import in_slices, turn
from kbroker.metrics.collection import Idle, collect
from kbroker.metrics.exposition import text_of
from kbroker.metrics.health import LOOP_S, readiness
from kbroker.metrics.logs import starting
from kbroker.metrics.values import Values

if TYPE_CHECKING:  # requires an extra
    from kbroker.metrics.pushed import Family, PushedMetrics

CONNECTIONS: Final = 32
"""The maximum number of concurrent connections."""
_COLLECT_S: Final = 30.0
_IDLE_S: Final = 30.0
"""The time, in seconds, after which an idle connection is closed."""
_SMALL: Final = 1024
_STOP_S: Final = 5.0
_T = TypeVar("_T")


class NoAnswer(Exception):  # noqa: N818 - an outcome
    """Raised if the event loop did not answer in time."""


log = logging.getLogger(__name__)


class MetricsServer:
    """Serves the metrics and health of one broker on a listening socket, even before the broker has started."""

    def __init__(self, listening: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._listening = listening
        self._loop = loop
        self.node: Node | None = None
        """The broker, after it has started."""
        self.logs: LogManager | None = None
        """The broker's logs; None before the broker begins to read them."""
        self.pushed: PushedMetrics | None = None
        """The metrics that clients push; None if pushes are not accepted."""
        self.stopping = False
        host, port = listening.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        """The server's address, such as "http://127.0.0.1:9404"."""
        self._closed = False
        self._idle = Idle()
        self._collecting = threading.Lock()
        self._measuring = threading.Lock()
        self._changing = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: dict[threading.Thread, socket.socket] = {}
        """The threads of connections in order of arrival, including replaced connections."""
        self._thread = threading.Thread(target=self._accept, name="kbroker-metrics", daemon=True)

    def start(self) -> Self:
        """Start to serve."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving. Do not call this in the loop's own thread, because an answer may be waiting for the loop."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # this wakes the accepting thread
        self._listening.close()
        with self._changing:
            left = dict(self._threads)
        for sock in left.values():
            _break(sock)
        for thread in [self._thread, *left]:
            if thread.is_alive():
                thread.join(_STOP_S)
        if self.pushed is not None:
            self.pushed.close()

    # -- connections

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listening.accept()
            except OSError:
                if not self._closed:
                    time.sleep(0.1)  # no file descriptor is free
                continue
            thread = threading.Thread(target=self._serve, args=(sock, address), name="kbroker-metrics", daemon=True)
            if not self._takes(sock, thread):
                sock.close()
                continue
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads
                self._forget(sock, thread)

    def _takes(self, sock: socket.socket, thread: threading.Thread) -> bool:
        """Make room for a connection. Return False while too many replaced connections are still active."""
        with self._changing:
            if len(self._threads) >= 2 * CONNECTIONS:
                return False
            if len(self._connections) >= CONNECTIONS:
                oldest = next(each for each in self._threads.values() if each in self._connections)
                self._connections.remove(oldest)
                _break(oldest)
            self._connections.add(sock)
            self._threads[thread] = sock
            return True

    def _serve(self, sock: socket.socket, address: Any) -> None:
        try:
            sock.settimeout(_IDLE_S)
            _Handler(self, sock, address)
        except OSError:
            pass  # the connection is broken
        except Exception:
            log.exception("a request for metrics has failed")
        finally:
            self._forget(sock, threading.current_thread())

    def _forget(self, sock: socket.socket, thread: threading.Thread) -> None:
        with self._changing:
            self._connections.discard(sock)
            self._threads.pop(thread, None)
        sock.close()

    # -- the requests

    def metrics(self, accept: str, asker: socket.socket) -> tuple[int, str, bytes]:
        """Return the page's status, type and text. Raises NoAnswer, or OSError for a broken connection."""
        with self._collecting:  # concurrent collections would only delay each other
            if asker not in self._connections:
                raise ConnectionAbortedError
            if self.stopping:
                return 503, "text/plain; charset=utf-8", b"the broker is stopping\n"
            node = self.node
            if node is None:
                text, content_type = text_of(self._ask(partial(starting, self.logs), _COLLECT_S), accept)
                return 200, content_type, text
            values, families = self._ask(partial(self._collect, node), _COLLECT_S)
            text, content_type = text_of(values, accept, families)
            return 200, content_type, text

    async def _collect(self, node: Node, lag_s: float) -> tuple[Values, Sequence[Family]]:
        values = await collect(node, self._idle, lag_s)
        families = () if self.pushed is None else await self.pushed.collect(values)
        return values, families

    def ready(self, *, strict: bool) -> tuple[bool, dict[str, Any]]:
        """Return whether the broker is ready, and its state. Raises NoAnswer."""

        async def measure(_lag_s: float) -> tuple[bool, dict[str, Any]]:
            return await readiness(self.node, self.logs, stopping=self.stopping, strict=strict)

        with self._measuring:  # one collection at a time, to limit the load on the loop
            return self._ask(measure, LOOP_S)

    def lag_s(self) -> float:
        """Return the time that the event loop took to respond. Raises NoAnswer."""

        async def measure(lag_s: float) -> float:
            await turn
            return lag_s

        return self._ask(measure, LOOP_S)

    def _ask(self, work: Callable[[float], Coroutine[Any, Any, _T]], patience_s: float) -> _T:
        """Run work in the loop, and return its result."""
        asked = time.monotonic()

        async def answer() -> _T:
            return await in_slices(work(time.monotonic() - asked))

        try:
            made: Future[_T] = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        except RuntimeError:  # the connection is closed
            raise NoAnswer from None
        try:
            return made.result(patience_s)
        except TooLate:
            made.cancel()
            raise NoAnswer from None


class _Handler(BaseHTTPRequestHandler):
    """One connection and its consecutive requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # without this, a body would be sent 40 ms after its head
    server_version = "kbroker"
    sys_version = ""

    def __init__(self, metrics: MetricsServer, sock: socket.socket, address: Any) -> None:
        self._metrics = metrics
        self._sock = sock
        super().__init__(sock, address, None)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
        except ValueError as error:
            self._answer_json(400, {"error": str(error)})
            return
        try:
            if asked.path == "/metrics":
                self._answer(*self._metrics.metrics(self.headers.get("Accept", ""), self._sock))
            elif asked.path in ("/healthz", "/livez"):
                self._answer_json(200, {"status": "alive", "loop_lag_seconds": round(self._metrics.lag_s(), 6)})
            elif asked.path == "/readyz":
                strict = "strict" in parse_qs(asked.query, keep_blank_values=True)
                is_ready, body = self._metrics.ready(strict=strict)
                self._answer_json(200 if is_ready else 503, body)
            else:
                self._answer_json(404, {"paths": ["/metrics", "/healthz", "/readyz"]})
        except NoAnswer:
            if asked.path == "/metrics":
                self._answer_json(503, {"error": "the event loop did not find all values in time"})
                return
            reason = f"the event loop did not answer within {LOOP_S:.0f} s"
            self._answer_json(503, {"status": "not alive", "reasons": [reason]})

    do_HEAD = do_GET  # noqa: N815 - as it is called

    def _answer_json(self, status: int, body: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(body).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if len(body) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)  # compressing releases the interpreter
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        log.debug(format, *args)


def _break(sock: socket.socket) -> None:
    """Shut a socket down, which wakes its thread and ends the connection."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)

"""Requests of a web server to a cluster: blocking clients in a few threads, with a deadline for each request.

Owns the threads, and the clients that are kept between requests. A client with a broken connection is discarded, and a
read-only request is retried once with a new client. Does not depend on a particular request.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafka.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    UnknownBrokerIdError,
)

from kbroker.admin.connection import Connection, in_words
from kbroker.admin.errors import AdminError, Unreachable, WrongInput

T = TypeVar("T")
DEADLINE_S: Final = 12.0
"""The seconds after which a page stops waiting. The thread of the request continues until the client's own timeouts."""
_THREADS: Final = 8
_MOST_WAITING: Final = 64
_SETTINGS: Final = {
    "request_timeout_ms": 10_000,
    "bootstrap_timeout_ms": 3_000,
    "reconnect_backoff_max_ms": 500,
}
CLIENT_ID: Final = "kbroker-console"
_ENDING: Final = "the console is stopping"
_BROKEN: Final = (KafkaConnectionError, NodeNotReadyError, KafkaTimeoutError, UnknownBrokerIdError)


class Slow(Exception):  # noqa: N818 - an outcome
    """The cluster has not answered in time."""


class Busy(Exception):  # noqa: N818 - an outcome
    """Too many requests are in progress."""


def patient(connection: Connection) -> Connection:
    """Return a connection with the console's own client id and timeouts as defaults."""
    return replace(connection, client_id=CLIENT_ID, settings={**_SETTINGS, **connection.settings})


class Cluster:
    """A cluster to which the pages send requests."""

    def __init__(self, connection: Connection, threads: int = _THREADS) -> None:
        self.connection = patient(connection)
        self._threads = ThreadPoolExecutor(threads, "kbroker-console")
        self._idle: deque[Any] = deque()
        self._lock = threading.Lock()
        self._waiting = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = self._over = False

    async def ask(self, question: Callable[[Any], T], *, reads: bool = True, deadline_s: float = DEADLINE_S) -> T:
        """Call `question` with an admin client in a thread; return the result.

        Raises Unreachable if the cluster cannot be reached, and AdminError if the cluster refuses a request. Also
        raises Slow and Busy.
        """
        return await self.work(lambda: self._answer(question, reads), deadline_s=deadline_s)

    async def work(self, call: Callable[[], T], *, deadline_s: float = DEADLINE_S) -> T:
        """Run a blocking call in a thread."""
        if self._over:
            raise Busy(_ENDING)
        if self._waiting >= _MOST_WAITING:
            raise Busy("too many requests are in progress already")
        self._waiting += 1
        working = asyncio.get_running_loop().run_in_executor(self._threads, call)
        working.add_done_callback(self._done)
        answer = asyncio.shield(working)
        self._running.add(answer)
        try:
            return await asyncio.wait_for(answer, deadline_s)
        except TimeoutError:
            raise Slow(f"the cluster has not answered within {deadline_s:g} s") from None
        finally:
            self._running.discard(answer)

    def give_up(self) -> None:
        """Let every waiting request fail. Call this method in the event loop of the requests."""
        self._over = True
        for answer in self._running:
            if not answer.done():
                answer.set_exception(Busy(_ENDING))

    def _done(self, working: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not working.cancelled():
            working.exception()  # mark the exception as retrieved, because no request may be waiting for it any more

    def _answer(self, question: Callable[[Any], T], reads: bool) -> T:
        client, used = self._take()
        try:
            try:
                return self._with(client, question)
            except _BROKEN:
                if not (reads and used):
                    raise
            client, _ = self._take(fresh=True)
            return self._with(client, question)
        except _BROKEN as error:
            raise Unreachable(in_words(error, self.connection)) from error
        except KafkaError as error:
            raise AdminError(in_words(error, self.connection)) from error
        except (struct.error, UnicodeEncodeError) as error:
            raise WrongInput("a number is too large, or a text cannot be encoded, for Kafka's protocol") from error

    def _with(self, client: Any, question: Callable[[Any], T]) -> T:
        """Send the request. Keep the client if its connection is certainly not broken."""
        keep = False
        try:
            found = question(client)
            keep = True
            return found
        except (AdminError, BrokerResponseError, struct.error, UnicodeEncodeError):
            keep = True
            raise
        finally:
            if not keep or not self._kept(client):
                with contextlib.suppress(Exception):
                    client.close()

    def _take(self, *, fresh: bool = False) -> tuple[Any, bool]:
        with self._lock:
            if self._idle and not fresh:
                return self._idle.pop(), True
        try:
            return self.connection.open_admin(), False
        except KafkaError as error:
            raise Unreachable(in_words(error, self.connection)) from error

    def _kept(self, client: Any) -> bool:
        with self._lock:
            if self._closed or len(self._idle) >= _THREADS:
                return False
            self._idle.append(client)
            return True

    def close(self) -> None:
        """Close the idle clients; each running request closes its own client at its end."""
        with self._lock:
            self._closed = True
            idle, self._idle = list(self._idle), deque()
        for client in idle:
            with contextlib.suppress(Exception):
                client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

"""A small HTTP/1.1 client for requests from one registry to another, over persistent connections.

Owns the connections, their limits and deadlines. Follows no redirect, and never retries: the caller retries. This
client distinguishes requests that were never sent from requests that may have been executed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11

CONNECT_S: Final = 2.0
ANSWER_S: Final = 15.0
"""The seconds within which an answer must begin, and within which each further piece of the answer must arrive."""
_KEPT_S: Final = 3.0
"""The seconds for which an idle connection is kept. The server keeps the connection for longer."""
_MOST_KEPT: Final = 16
_READ: Final = 64 * 1024
_LARGEST_HEAD: Final = 64 * 1024
Headers = Sequence[tuple[bytes, bytes]]


class NotSent(Exception):  # noqa: N818 - an outcome
    """No connection could be opened, so the request was not executed."""


class Unanswered(Exception):  # noqa: N818 - an outcome
    """The connection failed before the answer arrived: the request may have been executed."""


@dataclass(eq=False, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    rests_since: float = 0.0

    def is_usable(self, now: float) -> bool:
        return now - self.rests_since < _KEPT_S and not self.reader.at_eof() and not self.writer.is_closing()

    async def event(self) -> Any:
        """Return the next event of the answer; raises OSError, h11.RemoteProtocolError and TimeoutError."""
        while (found := self.http.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(ANSWER_S):
                self.http.receive_data(await self.reader.read(_READ))
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose body is not read yet."""

    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]


class Peers:
    """Connections to other registries, by URL. `tls` verifies https; the default is the system's verification."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._kept: dict[str, list[_Connection]] = {}

    def close(self) -> None:
        """Close the connections that no request uses."""
        for kept in self._kept.values():
            for each in kept:
                each.writer.close()
        self._kept.clear()

    @asynccontextmanager
    async def ask(self, url: str, method: str, target: bytes, headers: Headers, body: bytes) -> AsyncIterator[Answer]:
        """Send a request, and yield its answer. Raises NotSent and Unanswered (also while the body is read)."""
        connection = await self._connection(url)
        is_whole = False
        try:
            head = h11.Request(
                method=method,
                target=target,
                headers=[(b"host", urlsplit(url).netloc.encode()), *headers, (b"content-length", b"%d" % len(body))],
            )
            sent = connection.http.send(head) or b""
            if body:
                sent += connection.http.send(h11.Data(data=body)) or b""
            sent += connection.http.send(h11.EndOfMessage()) or b""
            connection.writer.write(sent)
            try:
                async with asyncio.timeout(ANSWER_S):
                    await connection.writer.drain()
                event = await connection.event()
                while isinstance(event, h11.InformationalResponse):
                    event = await connection.event()
            except (OSError, h11.RemoteProtocolError) as error:  # TimeoutError is an OSError
                raise Unanswered(_text(error)) from None
            if not isinstance(event, h11.Response):
                raise Unanswered("the connection was closed")
            yield Answer(event.status_code, list(event.headers), _pieces(connection))
            is_whole = connection.http.our_state is h11.DONE and connection.http.their_state is h11.DONE
        finally:
            self._give_back(url, connection, is_whole=is_whole)

    async def _connection(self, url: str) -> _Connection:
        kept = self._kept.get(url, [])
        while kept:
            found = kept.pop()
            if found.is_usable(time.monotonic()):
                return found
            found.writer.close()
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(CONNECT_S):
                tls = (self._tls or ssl.create_default_context()) if parts.scheme == "https" else None
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        except (OSError, ValueError) as error:
            raise NotSent(_text(error)) from None
        return _Connection(reader, writer, h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD))

    def _give_back(self, url: str, connection: _Connection, *, is_whole: bool) -> None:
        kept = self._kept.setdefault(url, [])
        if is_whole and len(kept) < _MOST_KEPT:
            connection.http.start_next_cycle()
            connection.rests_since = time.monotonic()
            kept.append(connection)
        else:
            connection.writer.close()
        for other in [each for each in self._kept if not self._kept[each]]:
            del self._kept[other]


async def _pieces(connection: _Connection) -> AsyncIterator[bytes]:
    try:
        while not isinstance(event := await connection.event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise Unanswered("the connection was closed")
            yield bytes(event.data)
    except (OSError, h11.RemoteProtocolError) as error:
        raise Unanswered(_text(error)) from None


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    with contextlib.suppress(IndexError):
        return str(error.args[0])
    return type(error).__name__

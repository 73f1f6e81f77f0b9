"""A connection of HTTP to the registry: uvicorn's, around the parser of Node.js (httptools).

Owns the limits that this parser does not have: of a head, of what is no body, of requests that do not wait for answers,
and of the time that a request's head takes. Never answers a request.

The parser takes a fifth of the time of uvicorn's other one, which was a third of the whole time of a request by id.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kbroker.web_server import Deadline

LARGEST_HEAD: Final = 16 * 1024
"""The most bytes of a request's head, and of what a connection sends without a part of a body."""
MOST_AHEAD: Final = 16
"""How many requests may arrive before the first of them is answered."""


class TooMuch(Exception):  # noqa: N818 - an outcome
    """A client sends more than a connection takes; uvicorn answers with 400, and closes."""


class _Joined:
    """A transport that sends at once what is written in one turn of the loop: the head and the body of an answer.

    uvicorn writes them one by one, and each call of the system takes as long as all else that an answer needs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send data, at the end of this turn at the latest."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()


class RegistryConnection(HttpToolsProtocol):
    """A connection with limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _Joined(transport, self.loop)))
        self._head = self._unread = 0
        self._in_head = True
        self._deadline = Deadline()
        self._deadline.follow(self)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > LARGEST_HEAD + len(data) and not self.transport.is_closing():
            self.send_400_response("A part of the request is too long.")
        self._deadline.follow(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._deadline.forget()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            raise TooMuch
        super().on_message_begin()
        self._head = self._unread = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what follows a body in pieces is passed over
            self._count(len(name) + len(value))
            super().on_header(name, value)
        self._unread = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > LARGEST_HEAD:
            raise TooMuch

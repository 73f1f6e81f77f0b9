"""A client at the level of messages: it encodes a request in a version and decodes the response, nothing more.

Owns one socket. Never retries, never interprets. A closed connection is also an answer: `CLOSED`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from kbroker import handlers
from kbroker.handlers.registry import APIS
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.messages.connections import RequestHeader

handlers.load_all()  # the registry knows each request's response

CLOSED = "connection closed"
SILENCE = "no answer"
DEADLINE_SECONDS = 20.0
_API_VERSIONS = 18


def response_class(request: Any) -> Any:
    return APIS[type(request).KEY].response


class WireClient:
    """One connection. `client_id` goes into every header."""

    def __init__(self, address: str, client_id: str | None = "wire") -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS)
        self._client_id = client_id
        self._correlation = 0
        self._pending: tuple[Any, int, int] | None = None

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, request: Any, version: int) -> None:
        """Send a request; `finish` reads its response."""
        self._correlation += 1
        cls = type(request)
        header = RequestHeader(
            request_api_key=cls.KEY,
            request_api_version=version,
            correlation_id=self._correlation,
            client_id=self._client_id,
        )
        body = encode(header, 2 if version in cls.FLEXIBLE else 1) + encode(request, version)
        self._pending = (response_class(request), version, self._correlation)
        self._sock.sendall(struct.pack(">i", len(body)) + body)

    def finish(self, timeout: float = DEADLINE_SECONDS) -> Any:
        """Wait for the response to the request that was started; SILENCE after `timeout` seconds."""
        assert self._pending is not None, "nothing was asked"
        cls, version, correlation = self._pending
        self._pending = None
        raw = self.receive(timeout)
        if isinstance(raw, str):
            return raw
        view = memoryview(raw)
        assert struct.unpack_from(">i", view)[0] == correlation
        tagged = version in cls.FLEXIBLE and cls.KEY != _API_VERSIONS
        return decode(cls, version, view[5 if tagged else 4 :])

    def ask(self, request: Any, version: int, timeout: float = DEADLINE_SECONDS) -> Any:
        """Send a request and return its response; SILENCE after `timeout` seconds."""
        self.start(request, version)
        return self.finish(timeout)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._sock.sendall(data)

    def receive(self, timeout: float = DEADLINE_SECONDS) -> bytes | str:
        """Return one response frame, CLOSED, or SILENCE after `timeout` seconds."""
        self._sock.settimeout(timeout)
        try:
            size = self._exactly(4)
            return size if isinstance(size, str) else self._exactly(struct.unpack(">i", size)[0])
        except TimeoutError:
            return SILENCE

    def _exactly(self, size: int) -> bytes | str:
        parts = []
        while size:
            try:
                got = self._sock.recv(size)
            except ConnectionError:
                return CLOSED
            if not got:
                return CLOSED
            parts.append(got)
            size -= len(got)
        return b"".join(parts)

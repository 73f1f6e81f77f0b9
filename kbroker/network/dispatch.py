"""From one request frame to one answer: header, decoder, handler, encoder.

Owns the table of what is served and the place where a whole-request failure becomes an answer. Never touches a
transport: connection.py feeds it frames and sends what it appends to `out`.

    frame    api_key i16, api_version i16, correlation_id i32, client_id (i16 length), [tags], body
    answer   size i32, correlation_id i32, [tags], body          (ApiVersions answers never have header tags: KIP-511)
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Awaitable, Callable
from types import GeneratorType
from typing import Any

from kbroker.divided import whole
from kbroker.handlers.registry import APIS, Api, CloseConnection, Handler, RequestContext
from kbroker.protocol.compiler import Spill, decoder, encoder
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.headers import RequestHeader
from kbroker.protocol.schema import Versions
from kbroker.protocol.wire import read_uvarint

log = logging.getLogger(__name__)

API_VERSIONS_KEY = 18
_HEADER = struct.Struct(">hhih")
_PREFIX = struct.Struct(">ii")


class Entry:
    """One served (API, version): its codec, its handler, and the shape of its headers."""

    __slots__ = ("api", "decode", "encode", "handler", "prefix", "request_tags", "response", "version")

    def __init__(self, api: Api, version: int) -> None:
        self.api = api
        self.version = version
        self.decode: Callable[[Any], Any] = decoder(api.request, version)
        self.encode = encoder(api.response, version)
        # Asked once and not per request: where DEBUG is off, requests cost nothing more.
        self.handler = _told(api, version) if log.isEnabledFor(logging.DEBUG) else api.handler
        self.response = api.response
        flexible: Versions = api.request.FLEXIBLE
        self.request_tags = version in flexible
        self.prefix = bytes(9 if self.request_tags and api.key != API_VERSIONS_KEY else 8)


def _told(api: Api, version: int) -> Handler:
    """Return an API's handler, with a line in the log for each request."""

    def handler(context: RequestContext, request: Any) -> Any:
        log.debug("%s v%d from %s, client %s", api.name, version, context.client_host, context.client_id)
        return api.handler(context, request)

    return handler


class Pending:
    """An answer that is not there yet: what to await, and how to encode it then."""

    __slots__ = ("awaitable", "correlation_id", "entry", "request")

    def __init__(self, entry: Entry, correlation_id: int, request: Any, awaitable: Awaitable[Any]) -> None:
        self.entry = entry
        self.correlation_id = correlation_id
        self.request = request
        self.awaitable = awaitable


class Dispatcher:
    """Runs requests. One serves all connections of a broker."""

    def __init__(self) -> None:
        self._table: dict[int, Entry] = {}

    def forget_entries(self) -> None:
        """Ask anew, for every API that comes next, whether its requests are to be logged."""
        self._table.clear()

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Pending | None:
        """Run one frame: append its answer to `out` and `spill`, or return what must be awaited first.

        Raises CloseConnection (unsupported or malformed request).
        """
        try:
            key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
        except struct.error:
            raise CloseConnection("a request shorter than its header") from None
        entry = self._table.get(key << 16 | version) or self._resolve(key, version)
        position = 10
        if id_length >= 0:
            position += id_length
            client_id = frame[10:position]
            if client_id != context.raw_client_id:
                context.set_client_id(client_id)
        elif context.raw_client_id is not None:
            context.set_client_id(None)
        try:
            if entry.request_tags:
                if position < len(frame) and frame[position] == 0:
                    position += 1
                else:
                    position = _skip_tags(frame, position)
            request = entry.decode(frame[position:]) if entry.version == version else None
        except Malformed as err:
            raise CloseConnection(f"{entry.api.name} v{version}: {err}") from None
        context.version = version
        try:
            answer = entry.handler(context, request)
            if answer.__class__ is GeneratorType:
                answer = whole(answer)
        except Exception as err:  # noqa: BLE001 - the one place where failures become answers
            answer = self._failed(entry, request, err)
        if answer.__class__ is entry.response:
            encode_answer(entry, correlation_id, answer, out, spill)
            return None
        if answer is None:
            return None
        return Pending(entry, correlation_id, request, answer)

    def finish(self, pending: Pending, answer: Any, error: BaseException | None, out: bytearray, spill: Spill) -> None:
        """Encode an answer that had to be awaited, or that divided work is to bring which had to be awaited."""
        if error is None and answer.__class__ is GeneratorType:
            try:
                answer = whole(answer)
            except Exception as err:  # noqa: BLE001 - as in `run`
                error = err
        if error is not None:
            answer = self._failed(pending.entry, pending.request, error)
        if answer is not None:
            encode_answer(pending.entry, pending.correlation_id, answer, out, spill)

    def _failed(self, entry: Entry, request: Any, error: BaseException) -> Any:
        answer = self._failure(entry, request, error)
        return whole(answer) if answer.__class__ is GeneratorType else answer

    def _failure(self, entry: Entry, request: Any, error: BaseException) -> Any:
        if isinstance(error, ApiError):
            log.debug("%s v%d is refused: %s", entry.api.name, entry.version, error)
            return entry.api.on_error(request, error.code, error.message)
        if isinstance(error, CloseConnection):
            raise error
        if isinstance(error, OSError):
            log.error("%s v%d: %s", entry.api.name, entry.version, error)
            return entry.api.on_error(request, ErrorCode.KAFKA_STORAGE_ERROR, None)
        log.error("%s v%d failed", entry.api.name, entry.version, exc_info=error)
        message = "The server experienced an unexpected error when processing the request."
        return entry.api.on_error(request, ErrorCode.UNKNOWN_SERVER_ERROR, message)

    def _resolve(self, key: int, version: int) -> Entry:
        api = APIS.get(key)
        if api is None:
            raise CloseConnection(f"unknown api key {key}")
        if version not in api.versions:
            if key != API_VERSIONS_KEY:
                raise CloseConnection(f"{api.name} has no version {version}")
            return Entry(api, 0)  # answered in version 0, whatever was asked: KIP-511
        entry = self._table[key << 16 | version] = Entry(api, version)
        return entry


def _skip_tags(frame: memoryview, position: int) -> int:
    try:
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError:
        raise Malformed(f"{RequestHeader.__name__}: tags end behind the frame") from None
    if position > len(frame):
        raise Malformed(f"{RequestHeader.__name__}: tags end behind the frame")
    return position


def encode_answer(entry: Entry, correlation_id: int, answer: Any, out: bytearray, spill: Spill) -> None:
    """Append one framed answer to `out`; records that go by reference are noted in `spill`."""
    start, spilled = len(out), len(spill)
    out += entry.prefix
    entry.encode(answer, out, spill)
    size = len(out) - start - 4
    for i in range(spilled, len(spill)):
        size += len(spill[i][1])
    _PREFIX.pack_into(out, start, size, correlation_id)

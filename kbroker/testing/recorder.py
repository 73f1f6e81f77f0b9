"""The recording of requests and answers as bytes, while there are no faults.

Recording costs so little that a broker can always record.

Owns the data of a request that is stored on arrival: its bytes, its sender, the partitions of its fetch session, and
the names of topics that are deleted later. A request is decoded on first access. Never changes a request or its
execution.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.handlers.services import Services
from kbroker.network.dispatch import LONG_FRAME, Dispatcher, Entry, Framed, Steps, Work, skip_tags
from kbroker.protocol.compiler import Spill, decode
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.security.principal import Principal
from kbroker.testing.filters import Seen
from kbroker.testing.requests import KEPT, Request, Requests
from kbroker.testing.subjects import Subjects, subjects_of

_HEADER: Final = struct.Struct(">hh")
_ID_LENGTH: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_BEFORE_ID: Final = 10
_SESSIONS_FROM, _NO_REPLICA_FROM, _BEFORE_SESSION = 7, 15, 13
"""The first Fetch version with sessions, the first without a leading replica id, and the size before the session id."""
_FETCH: int = FetchRequest.KEY  # type: ignore[attr-defined]
_Known = tuple[tuple[str, bytes, int], ...]
"""The partitions of a fetch session."""


class Recorder:
    """The recorder of one broker. Its `run` replaces Dispatcher.run."""

    def __init__(self, dispatcher: Dispatcher, requests: Requests, services: Services) -> None:
        self._dispatcher = dispatcher
        self._run = dispatcher.run
        self._requests = requests
        self._services = services
        self._names: Mapping[bytes, str] = {}
        self._deleted: dict[bytes, str] = {}
        self._sessions: dict[int, _Known] = {}

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Run one frame. The interface is that of Dispatcher.run."""
        raw = bytes(frame)  # copied before an append writes offsets into the frame
        clock, at, spilt = self._services.clock, len(out), len(spill)
        names = self._services.controller.state.topic_names
        if names is not self._names:
            self._keep_names(names)
        began = clock.monotonic_ms()
        try:
            work = self._run(context, frame, out, spill)
        except CloseConnection:
            self._record_refused(context, raw)
            raise
        key, version = _HEADER.unpack_from(raw)
        entry = self._dispatcher.entry(key, version)
        if entry.version != version:  # an unknown version of ApiVersions is of no use to a test
            return work
        known: _Known = self._known(raw, entry) if key == _FETCH else ()
        read = partial(self._read, entry, raw, context.client_id, context.principal, context.listener, known)
        if work is not None:
            request = Request(read, len(raw), clock.now_ms())
            self._requests.add(request)
            work.steps = self._steps(work.steps, entry, request, began)
            return work
        answer = None
        if len(spill) > spilt:
            answer = joined_bytes((out[at:], [(position - at, piece) for position, piece in spill[spilt:]]))
        elif len(out) > at:
            answer = bytes(out[at:])
        took = clock.monotonic_ms() - began
        self._requests.add(Request(read, len(raw), clock.now_ms(), answer, partial(message_of, entry), took))
        return None

    async def _steps(self, steps: Steps, entry: Entry, request: Request, began: float) -> Framed:
        answer: Framed = None
        try:
            answer = await steps
        finally:
            data = None if answer is None else joined_bytes(answer)
            took = self._services.clock.monotonic_ms() - began
            self._requests.end_request(request, data, partial(message_of, entry), took)
        return answer

    def _record_refused(self, context: RequestContext, raw: bytes) -> None:
        """Record a request that closes its connection, if the request can be decoded."""
        try:
            entry = self._dispatcher.entry(*_HEADER.unpack_from(raw))
            if len(raw) > LONG_FRAME or entry.version != context.version:
                return
            _decoded(entry, raw)
        except (CloseConnection, Malformed, struct.error):
            return
        read = partial(self._read, entry, raw, context.client_id, context.principal, context.listener, ())
        now_ms = self._services.clock.now_ms()
        self._requests.add(Request(read, len(raw), now_ms, None, partial(message_of, entry), 0.0))

    def _read(
        self, entry: Entry, raw: bytes, client_id: str | None, principal: Principal, listener: str, known: _Known
    ) -> Seen:
        try:
            request = _decoded(entry, raw)
            subjects = subjects_of(request, self._name)
        except Malformed:  # the dispatcher detects this error only later, when it decodes a long frame in steps
            request, subjects = None, Subjects()
        for name, topic_id, index in known:
            found = name or self._name(topic_id)
            if found is not None:
                subjects.topics.setdefault(found, set()).add(index)
        node_id = self._services.node_id
        return Seen(entry.api.name, entry.version, client_id, str(principal), listener, request, subjects, node_id)

    def _name(self, topic_id: bytes) -> str | None:
        return self._services.controller.state.topic_names.get(topic_id) or self._deleted.get(topic_id)

    def _keep_names(self, names: Mapping[bytes, str]) -> None:
        """Keep the names of deleted topics, but not more names than recorded requests."""
        for topic_id in self._names.keys() - names.keys():
            self._deleted[topic_id] = self._names[topic_id]
        _bound(self._deleted)
        self._names = names

    def _known(self, raw: bytes, entry: Entry) -> _Known:
        """Return a fetch session's partitions before this request.

        The returned object is the same until the partitions change.
        """
        number = _session_id(raw, entry)
        session = self._services.fetch_sessions.get(number) if number else None
        if session is None:
            return ()
        found: _Known = tuple(session.partitions)
        if self._sessions.get(number) != found:
            self._sessions[number] = found
            _bound(self._sessions)
        return self._sessions[number]


def _bound(kept: dict[Any, Any]) -> None:
    """Remove the oldest entries beyond the number of kept requests."""
    for key in list(islice(kept, max(len(kept) - KEPT, 0))):
        del kept[key]


def _body(entry: Entry, raw: bytes) -> memoryview:
    """Return the body after the header. Raises Malformed."""
    frame = memoryview(raw)
    position = _BEFORE_ID + max(_ID_LENGTH.unpack_from(raw, _BEFORE_ID - _ID_LENGTH.size)[0], 0)
    if entry.request_tags:
        position = position + 1 if raw[position : position + 1] == b"\0" else skip_tags(frame, position)
    return frame[position:]


def _decoded(entry: Entry, raw: bytes) -> Any:
    return decode(entry.api.request, entry.version, _body(entry, raw))


def _session_id(raw: bytes, entry: Entry) -> int:
    """Return the session id of a fetch, or 0, without decoding the rest of the request."""
    if entry.version < _SESSIONS_FROM:
        return 0
    before = _BEFORE_SESSION if entry.version >= _NO_REPLICA_FROM else _BEFORE_SESSION + _INT.size
    return int(_INT.unpack_from(_body(entry, raw), before)[0])


def message_of(entry: Entry, data: bytes) -> Any:
    """Decode a framed answer."""
    return decode(entry.response, entry.version, memoryview(data)[len(entry.prefix) :])


def joined_bytes(framed: tuple[bytearray, Spill]) -> bytes:
    """Return a framed answer as bytes, including the pieces that are sent by reference."""
    out, spill = framed
    pieces, position = [], 0
    for at, piece in spill:
        pieces += [bytes(out[position:at]), bytes(piece.view() if hasattr(piece, "view") else piece)]
        position = at
    return b"".join([*pieces, bytes(out[position:])])

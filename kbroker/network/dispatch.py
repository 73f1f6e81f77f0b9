"""Converts a request frame to a response: header, decoder, handler, encoder.

Owns the table of served APIs, and converts the failure of a complete request to a response. Never uses a transport:
connection.py passes frames to it, and sends the bytes that it appends to `out`.

Long work is done in steps, and other connections are served between the steps (`Work`): a frame of more than LONG_FRAME
bytes is decoded in steps, a handler may return a coroutine (long_work.py), and its result is encoded in steps.

    frame    api_key i16, api_version i16, correlation_id i32, client_id (i16 length), [tags], body
    answer   size i32, correlation_id i32, [tags], body          (ApiVersions answers never have header tags: KIP-511)
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from random import Random
from time import perf_counter
from types import CoroutineType
from typing import Any, cast
from weakref import WeakSet

from kbroker.handlers.express_produce import KnownRequests
from kbroker.handlers.fetch_attempt import is_of_follower
from kbroker.handlers.from_brokers import BrokerHosts, only_from_brokers
from kbroker.handlers.metering import BETWEEN_BROKERS, Metering
from kbroker.handlers.registry import Api, CloseConnection, Handler, RequestContext, served
from kbroker.long_work import turn
from kbroker.network import request_log
from kbroker.network.request_log import Sink
from kbroker.network.request_times import KNOWN, RequestTimes, Tally
from kbroker.network.turns import Breadth, Lane
from kbroker.protocol.compiler import (
    DividedDecoder,
    DividedEncoder,
    Spill,
    decoder,
    divided_decoder,
    divided_encoder,
    encoder,
    short_decoder,
)
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.schema import Versions
from kbroker.protocol.wire import read_uvarint
from kbroker.quota.client_quotas import ClientQuotas
from kbroker.security.authorizer.authorizer import Authorizer, logs_allowed

log = logging.getLogger(__name__)

API_VERSIONS_KEY = 18
PRODUCE_KEY = 0
FETCH_KEY = 1
_PRODUCE_VERSIONS = 14
LONG_FRAME = 64 * 1024
"""A frame with more bytes than this is decoded and answered in steps."""
MAX_DECODED_BYTES = 100 * 1024 * 1024
"""The maximum memory of a decoded request, in bytes. A list of empty names uses sixty times its size on the wire.

Kafka's only limit is its heap.
"""
Run = Callable[["RequestContext", memoryview, bytearray, Spill], "Work | None"]
"""A function that runs one frame, like Dispatcher.run."""
Framed = tuple[bytearray, Spill] | None
"""A framed response, or None if there is no response."""
Steps = Coroutine[Any, Any, Framed]
_HEADER = struct.Struct(">hhih")
_PREFIX = struct.Struct(">ii")


class Entry:
    """One served API in one version: its codec, its handler, and the format of its headers."""

    __slots__ = (
        "api", "decode", "decode_short", "encode", "handler", "prefix", "produces", "request_tags", "response",
        "tally", "version",
    )  # fmt: skip

    def __init__(self, api: Api, version: int, handler: Handler, tally: Tally) -> None:
        self.api = api
        self.tally = tally
        self.version = version
        self.produces = api.key == PRODUCE_KEY
        self.decode: Callable[[Any], Any] = decoder(api.request, version)
        self.decode_short = short_decoder(api.request, version) if self.produces else _never_short
        self.encode = encoder(api.response, version)
        self.handler = handler
        self.response = api.response
        flexible: Versions = api.request.FLEXIBLE
        self.request_tags = version in flexible
        self.prefix = bytes(9 if self.request_tags and api.key != API_VERSIONS_KEY else 8)

    def divided_decode(self) -> DividedDecoder:
        """Return the decoder for long frames, a coroutine that yields to other work."""
        return divided_decoder(self.api.request, self.version)

    def divided_encode(self) -> DividedEncoder:
        """Return the encoder for long responses, a coroutine that yields to other work."""
        return divided_encoder(self.api.response, self.version)


def _never_short(_frame: Any) -> None:
    return None


class Decoded:
    """Counts the approximate memory of a decoded request."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, size: int) -> None:
        """Add `size` bytes. Raises Malformed if the sum becomes too large."""
        self.bytes += size
        if self.bytes > MAX_DECODED_BYTES:
            raise Malformed(f"the decoded request exceeds {MAX_DECODED_BYTES} bytes")


class Work:
    """A request that is answered in several steps.

    `steps` is a coroutine that returns the framed response, and that yields to other work as long_work.py describes.
    `size` is the frame's size in bytes; after a long frame is decoded, the size of the decoded request is added.
    """

    __slots__ = (
        "breadth",
        "entry",
        "error_code",
        "keeps_frame",
        "keeps_waiting",
        "lane",
        "metering",
        "pause_ms",
        "since",
        "size",
        "steps",
    )

    def __init__(self, entry: Entry, size: int) -> None:
        self.entry = entry
        self.size = size
        self.lane: Lane | None = None
        """The lane (turns.py) in which the work waits for other requests that use a similar amount of memory."""
        self.keeps_frame = entry.produces
        """Whether the work still uses the frame's bytes between its steps."""
        self.keeps_waiting = False
        """Whether the work also uses the frame's bytes while it awaits a future.

        If a handler has returned a future, it has copied the bytes.
        """
        self.metering: Metering | None = None
        """The meter of the client's quotas, if the client has quotas."""
        self.since = 0.0
        """The time of the work's first run, if its time is measured."""
        self.error_code: int | None = None
        """The error code of the complete request; None if the request is not logged or traced."""
        self.pause_ms = 0
        """The time in ms for which the client is muted after the response."""
        self.breadth = Breadth.NARROW if entry.produces else Breadth.HUGE if size > LONG_FRAME else Breadth.WIDE
        self.steps: Steps

    @property
    def key(self) -> int:
        return self.entry.api.key

    @property
    def name(self) -> str:
        return f"{self.entry.api.name} v{self.entry.version}"


class Dispatcher:
    """Runs requests. One dispatcher serves all connections of a broker."""

    def __init__(
        self,
        *,
        in_cluster: bool = False,
        authorizer: Authorizer | None = None,
        quotas: ClientQuotas | None = None,
        brokers: BrokerHosts | None = None,
    ) -> None:
        """Initialize; with an `authorizer`, a guard runs before each handler (handlers/authorized/).

        With `brokers`, inter-broker requests are accepted only from brokers (handlers/from_brokers.py).

        With `quotas`, clients are metered: their requests cannot skip the handler, and a response's `throttle_time_ms`
        is the client's pause.
        """
        self._apis = served(in_cluster=in_cluster)
        self._table: dict[int, Entry] = {}
        self.times = RequestTimes()
        # By version: counters of Produce requests that skip their handler. These requests use no entry of the table.
        self._expressed = [self.times.tally(PRODUCE_KEY, version) for version in range(_PRODUCE_VERSIONS)]
        self._authorizer = authorizer
        self._brokers = brokers
        self._known_requests: WeakSet[KnownRequests] = WeakSet()
        if authorizer is not None:
            authorizer.on_change(self._forget_requests)
        self._quotas = quotas
        self._metered = self._observed = self._logged = self._timed = self._express = False
        self._sink: Sink | None = None
        self._ratio = 1.0
        self._draw = Random().random
        self._sampled = False
        """Whether the current request will be passed to the sink."""
        self.refresh()
        self.entrance: Run = self.run
        """The function to which connections pass their frames: `run`, or a function that calls it (Server.divert)."""
        if quotas is not None:
            quotas.on_activity = self.refresh

    @property
    def apis(self) -> list[str]:
        """Return the names of the served APIs."""
        return [each.name for each in self._apis.values()]

    @property
    def names(self) -> Mapping[int, str]:
        """Return the names of the served APIs by their keys."""
        return {key: each.name for key, each in self._apis.items()}

    def refresh(self) -> None:
        """Decide which requests are measured and logged, after a change of loggers, quotas or the trace sink.

        This method is not called for each request. So if nothing is measured, logged or traced, requests have no extra
        cost.
        """
        self._metered = self._quotas is not None and self._quotas.active
        self._logged = self._observed = request_log.enabled()
        if self._authorizer is not None:
            self._authorizer.logs_allowed = logs_allowed()
            self._observed |= self._authorizer.logs_allowed
        self._timed = self._metered or self._logged or self._sink is not None
        # Whether all Produce requests may skip their handler: no request needs a meter, a log line or a trace.
        self._express = not self._metered and not self._observed and self._sink is None

    def _is_express_for(self, context: RequestContext) -> bool:
        """Whether the current request may skip its handler, because it is not metered, logged or traced."""
        if self._sink is not None:
            self._sample()
        return not (self._observed or self._sampled or (self._metered and self._is_limited(context)))

    def _sample(self) -> None:
        """Decide whether to pass the current request to the sink."""
        self._sampled = self._draw() < self._ratio

    def _is_limited(self, context: RequestContext) -> bool:
        """Whether the client has any quota.

        Cache the result until the principal, the client id or the quotas change.
        """
        quotas, known = self._quotas, context.limited
        assert quotas is not None
        principal, client_id = context.principal, context.raw_client_id
        if known is None or known[0] != quotas.generation or known[1] is not principal or known[2] is not client_id:
            is_limited = quotas.limit(principal.name, context.client_id)
            known = context.limited = (quotas.generation, principal, client_id, is_limited)
        return known[3]

    def _forget_requests(self) -> None:
        """Forget the known requests of all connections, because a principal may have lost the permission to write."""
        for known_requests in self._known_requests:
            known_requests.forget()

    def _handler(self, api: Api) -> Handler:
        handler = api.handler
        if self._authorizer is not None:
            from kbroker.handlers.authorized import guarded

            handler = guarded(api)
        return handler if self._brokers is None else only_from_brokers(api, handler, self._brokers)

    def trace(self, sink: Sink | None, ratio: float = 1.0) -> None:
        """Pass a share of the requests, after their responses, to `sink` on the loop.

        If `sink` is None, pass no requests.
        """
        self._sink, self._ratio, self._sampled = sink, ratio, False
        self.refresh()

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Run one frame: append its response to `out` and `spill`, or return the remaining work before the response.

        Raise CloseConnection for an unsupported or malformed request.
        """
        try:
            key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
        except struct.error:
            raise CloseConnection("a request shorter than its header") from None
        if (
            key == PRODUCE_KEY
            and context.known_requests is not None
            and (self._express or self._is_express_for(context))
            and context.known_requests.answer(frame, version, correlation_id, out)
        ):
            self._expressed[version].requests += 1
            return None
        since = perf_counter() if self._timed else None
        entry = self._table.get(key << 16 | version) or self._resolve(key, version)
        tally = entry.tally
        tally.requests = count = tally.requests + 1
        if count <= KNOWN:
            self.times.due = 0
        position = 10
        if id_length >= 0:
            position += id_length
            client_id = frame[10:position]
            if client_id != context.raw_client_id:
                context.set_client_id(client_id)
        elif context.raw_client_id is not None:
            context.set_client_id(None)
        context.version = version
        if since is not None:
            if self._sink is not None and (key != PRODUCE_KEY or context.known_requests is None):  # else already done
                self._sample()
            if self._metered and self._is_limited(context):
                self._begin_metering(context, len(frame), since)
            elif not (self._logged or self._sampled):
                since = None
        try:
            if entry.request_tags:
                if position < len(frame) and frame[position] == 0:
                    position += 1
                else:
                    position = skip_tags(frame, position)
            if len(frame) > LONG_FRAME and entry.version == version:
                request = entry.decode_short(frame[position:])
                if request is None:
                    return self._long_work(entry, context, correlation_id, frame, position, since)
            else:
                request = entry.decode(frame[position:]) if entry.version == version else None
        except Malformed as err:
            raise CloseConnection(f"{entry.api.name} v{version}: {err}") from None
        try:
            answer = entry.handler(context, request)
        except Exception as err:  # noqa: BLE001 - the one place where failures become responses
            answer = self._failed(entry, request, err)
        if since is not None:
            work = self._begun(entry, correlation_id, frame, request, answer)
            self._time(work, context, correlation_id, since)
            return work
        if answer.__class__ is entry.response:
            encode_answer(entry, correlation_id, answer, out, spill)
            if entry.produces and (self._express or self._is_express_for(context)):
                if context.known_requests is None:
                    context.known_requests = KnownRequests()
                    if self._authorizer is not None:
                        self._known_requests.add(context.known_requests)
                context.known_requests.learn(context, frame, position, request, answer)
            return None
        if answer is None:
            return None
        return self._begun(entry, correlation_id, frame, request, answer)

    def _begun(self, entry: Entry, correlation_id: int, frame: memoryview, request: Any, answer: Any) -> Work:
        work = Work(entry, len(frame))
        work.keeps_waiting = work.keeps_frame and answer.__class__ is CoroutineType
        work.steps = self._answer(entry, correlation_id, request, answer, work)
        return work

    def _begin_metering(self, context: RequestContext, size: int, since: float) -> None:
        if context.metering is None:
            assert self._quotas is not None
            context.metering = Metering(self._quotas)
        context.metering.begin(context.principal, context.client_id, size, since)

    def _time(self, work: Work, context: RequestContext, correlation_id: int, since: float) -> None:
        """Add the needed metering, logging and tracing to a request's steps."""
        metering = context.metering
        if metering is not None and metering.running:
            work.metering = metering
            work.steps = metering.timed(work.steps)
        if self._logged or self._sampled:
            work.error_code = 0
            sink = self._sink if self._sampled else None
            work.steps = request_log.measured(work.steps, work, context, correlation_id, since, sink)

    def head(self, context: RequestContext, frame: memoryview) -> tuple[Entry, int, int]:
        """Read the header of a frame without running it. Return its entry, correlation id, and the start of its body.

        Raises CloseConnection in the same cases as `run`, and also for a long frame with tags in its header.
        """
        try:
            key, version, correlation_id, id_length = _HEADER.unpack_from(frame)
        except struct.error:
            raise CloseConnection("a request shorter than its header") from None
        entry = self.entry(key, version)
        position = 10 + max(id_length, 0)
        context.set_client_id(frame[10:position] if id_length >= 0 else None)
        context.version = version
        if entry.request_tags:
            if len(frame) > LONG_FRAME and bytes(frame[position : position + 1]) != b"\0":
                raise CloseConnection(f"{entry.api.name} v{version}: a long frame has tags in its header")
            try:
                position = skip_tags(frame, position)
            except Malformed as err:
                raise CloseConnection(f"{entry.api.name} v{version}: {err}") from None
        return entry, correlation_id, position

    def entry(self, key: int, version: int) -> Entry:
        """Return the entry of an API and version. Raises CloseConnection if the version is not served."""
        return self._table.get(key << 16 | version) or self._resolve(key, version)

    def _long_work(
        self,
        entry: Entry,
        context: RequestContext,
        correlation_id: int,
        frame: memoryview,
        position: int,
        since: float | None,
    ) -> Work:
        work = Work(entry, len(frame))
        work.keeps_frame = True
        work.keeps_waiting = entry.produces
        work.steps = self._long(entry, context, correlation_id, frame[position:], work)
        if since is not None:
            self._time(work, context, correlation_id, since)
        return work

    async def _long(
        self, entry: Entry, context: RequestContext, correlation_id: int, body: memoryview, work: Work
    ) -> Framed:
        """Decode a long frame in steps, run it, and respond."""
        decoded = Decoded()
        try:
            request = await entry.divided_decode()(body, decoded.take)
        except Malformed as err:
            raise CloseConnection(f"{entry.api.name} v{entry.version}: {err}") from None
        work.size += decoded.bytes
        await turn
        try:
            answer = entry.handler(context, request)
        except Exception as err:  # noqa: BLE001 - as in `run`
            answer = self._failed(entry, request, err)
        return await self._answer(entry, correlation_id, request, answer, work, divided=True)

    async def _answer(
        self, entry: Entry, correlation_id: int, request: Any, answer: Any, work: Work, *, divided: bool = False
    ) -> Framed:
        """Await the handler's result and encode it, in steps if the handler worked in steps."""
        while answer is not None and answer.__class__ is not entry.response:  # repeat this after a failure
            divided = divided or answer.__class__ is CoroutineType
            try:
                answer = await answer
            except Exception as err:  # noqa: BLE001 - as in `run`
                answer = self._failed(entry, request, err)
        if work.metering is not None:
            answer = self._settle(work, work.metering, request, answer)
        if answer is None:
            return None
        if work.error_code is not None:
            work.error_code = getattr(answer, "error_code", 0)
        out, spill = bytearray(), cast("Spill", [])
        if divided:
            await encode_divided(entry, correlation_id, answer, out, spill)
        else:
            encode_answer(entry, correlation_id, answer, out, spill)
        return out, spill

    def _settle(self, work: Work, metering: Metering, request: Any, answer: Any) -> Any:
        """Compute the client's pause, and return the response with this pause."""
        api = work.entry.api
        if api.name in BETWEEN_BROKERS or (api.key == FETCH_KEY and is_of_follower(request)):
            return answer
        produces = work.entry.produces
        work.pause_ms = metering.settle(produces=produces, counts_time=answer is not None or not produces)
        if work.pause_ms and hasattr(answer, "throttle_time_ms"):
            answer = copy(answer)  # other requests may share the response
            answer.throttle_time_ms = work.pause_ms
        return answer

    def name_of(self, frame: memoryview) -> str:
        """Return the name of the request in a frame."""
        key, version = _HEADER.unpack_from(frame)[:2]
        api = self._apis.get(key)
        return f"{api.name if api is not None else key} v{version}"

    def _failed(self, entry: Entry, request: Any, error: BaseException) -> Any:
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
        api = self._apis.get(key)
        if api is None:
            raise CloseConnection(f"unknown api key {key}")
        if version not in api.versions:
            if key != API_VERSIONS_KEY:
                raise CloseConnection(f"{api.name} has no version {version}")
            # Respond to any requested version in version 0 (KIP-511).
            return Entry(api, 0, self._handler(api), self.times.tally(key, 0))
        entry = Entry(api, version, self._handler(api), self.times.tally(key, version))
        self._table[key << 16 | version] = entry
        return entry


def skip_tags(frame: memoryview, position: int) -> int:
    """Return the position at which the tags of a header end. Raises Malformed if the tags are malformed."""
    try:
        count, position = read_uvarint(frame, position)
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
    except IndexError:
        raise Malformed(f"{RequestHeader.__name__}: tags end after the frame") from None
    if position > len(frame):
        raise Malformed(f"{RequestHeader.__name__}: tags end after the frame")
    return position


async def encode_divided(entry: Entry, correlation_id: int, answer: Any, out: bytearray, spill: Spill) -> None:
    """Append one framed response in steps to `out` and `spill`, which must be empty."""
    out += entry.prefix
    await entry.divided_encode()(answer, out, spill)
    _PREFIX.pack_into(out, 0, len(out) - 4 + sum(len(piece) for _, piece in spill), correlation_id)


def encode_answer(entry: Entry, correlation_id: int, answer: Any, out: bytearray, spill: Spill) -> None:
    """Append one framed response to `out`, and add the records that are sent by reference to `spill`."""
    start, spilled = len(out), len(spill)
    out += entry.prefix
    entry.encode(answer, out, spill)
    size = len(out) - start - 4
    for i in range(spilled, len(spill)):
        size += len(spill[i][1])
    _PREFIX.pack_into(out, start, size, correlation_id)

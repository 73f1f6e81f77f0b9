"""The interceptor between connections and the dispatcher: it applies faults to requests and records them.

Owns the handling of a frame according to a fault's plan. The dispatcher runs the request's frame, and the interceptor
changes, delays, cuts or drops the frame of the answer. Never decides which requests fail: faults.py does. Without
faults it only records requests (recorder.py). A broker without faults and without recording does not use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from functools import partial
from typing import Any, cast

from kbroker.handlers.fetch_attempt import is_of_follower
from kbroker.handlers.metering import BETWEEN_BROKERS
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.handlers.services import Services
from kbroker.network.dispatch import Dispatcher, Entry, Framed, Run, Steps, Work, encode_answer
from kbroker.protocol.compiler import Spill, decode, encode
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kbroker.testing.faults import End, Faults, Kind, Plan
from kbroker.testing.filters import Seen, When
from kbroker.testing.gate import Entrance, steps_behind
from kbroker.testing.recorder import Recorder, joined_bytes, message_of
from kbroker.testing.refusals import refusal
from kbroker.testing.requests import Request, Requests
from kbroker.testing.subjects import Subjects, joined, part_of, subjects_of

_SIZE = struct.Struct(">i")
_API_VERSIONS = 18
_FETCH: int = FetchRequest.KEY  # type: ignore[attr-defined]
_METADATA: int = MetadataRequest.KEY  # type: ignore[attr-defined]
_OF_SESSIONS = frozenset({ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH})
_BREAK = "a fault breaks the connection"


class Interceptor:
    """The interceptor of one broker. Its `run` replaces Dispatcher.run."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        faults: Faults,
        requests: Requests,
        services: Services,
        entrance: Entrance | None = None,
    ) -> None:
        """Create the interceptor.

        If `entrance` is shut while a fault delays a request, the request also waits until `entrance` is open.
        """
        self._dispatcher = dispatcher
        self._run: Run = dispatcher.run
        self._faults = faults
        self._requests = requests
        self._services = services
        self._entrance = entrance
        self._recorder = Recorder(dispatcher, requests, services) if services.cluster is None else None
        self._broken = asyncio.Event()

    def break_waiting(self) -> None:
        """Close the connections of requests that are delayed or have no answer. Call this on the loop."""
        self._broken.set()
        self._broken = asyncio.Event()

    def run(self, context: RequestContext, frame: memoryview, out: bytearray, spill: Spill) -> Work | None:
        """Run one frame. The interface is that of Dispatcher.run."""
        if self._recorder is not None and not self._faults.active:
            return self._recorder.run(context, frame, out, spill)
        entry, correlation_id, position = self._dispatcher.head(context, frame)
        if entry.version != context.version:  # an unknown version of ApiVersions is of no use to a test
            return self._run(context, frame, out, spill)
        if self._requests.on:
            frame = memoryview(bytes(frame))  # a copy, because the receive buffer is reused
        try:
            request = decode(entry.api.request, entry.version, frame[position:])
        except Malformed as err:
            raise CloseConnection(f"{entry.api.name} v{entry.version}: {err}") from None
        if self._services.cluster is not None and _is_of_broker(entry.api.name, request):
            return self._run(context, frame, out, spill)
        seen = Seen(
            entry.api.name,
            entry.version,
            context.client_id,
            str(context.principal),
            context.listener,
            request,
            subjects_of(request, self._name),
            self._services.node_id,
        )
        if entry.api.key == _FETCH:
            self._add_session(request, seen.subjects)
        work = Work(entry, len(frame))
        work.keeps_frame = work.keeps_waiting = True
        work.steps = self._steps(context, work, correlation_id, frame, seen, self._faults.plan(seen))
        return work

    def _name(self, topic_id: bytes) -> str | None:
        return self._services.controller.state.topic_names.get(topic_id)

    def _add_session(self, request: FetchRequest, subjects: Subjects) -> None:
        """Add the partitions of a fetch session that the request does not name itself."""
        session = self._services.fetch_sessions.get(request.session_id) if request.session_id else None
        for name, topic_id, index in session.partitions if session is not None else ():
            known = name or self._name(topic_id)
            if known is not None:
                subjects.topics.setdefault(known, set()).add(index)

    async def _steps(
        self,
        context: RequestContext,
        work: Work,
        correlation_id: int,
        frame: memoryview,
        seen: Seen,
        plan: Plan | None,
    ) -> Framed:
        clock, answer, entry = self._services.clock, None, work.entry
        request = Request(seen, len(frame), clock.now_ms()) if self._requests.on else None
        if request is not None:
            request.fault = None if plan is None else plan.in_words()
            self._requests.add(request)
        began = clock.monotonic_ms()
        try:
            if plan is None:
                answer = await self._answered(context, work, frame)
            else:
                answer = await self._by_plan(context, work, correlation_id, frame, seen, plan)
        except CloseConnection as end:
            whole = plan is not None and plan.end is not None and plan.end.value is When.AFTER
            answer = (
                (bytearray(end.farewell), []) if whole and end.farewell else None
            )  # a partial answer cannot be decoded
            raise
        finally:
            if request is not None:
                data = None if answer is None else joined_bytes(answer)
                read = partial(message_of, entry)
                self._requests.end_request(request, data, read, clock.monotonic_ms() - began)
        if plan is not None and plan.end is not None and plan.end.kind is Kind.DROP:
            # Answers have the order of requests. So after a missing answer the client could not match later answers.
            await self._pause(None)
        return answer

    async def _by_plan(
        self, context: RequestContext, work: Work, correlation_id: int, frame: memoryview, seen: Seen, plan: Plan
    ) -> Framed:
        end, entry = plan.end, work.entry
        if end is not None and end.value is When.REQUEST:
            raise CloseConnection(_BREAK)
        if plan.delay_ms:
            await self._pause(plan.delay_ms / 1000)
            if self._entrance is not None:
                await self._entrance.passed()
        if end is not None and end.kind is Kind.FAIL:
            answer = await self._failed(context, work, correlation_id, seen, end)
        else:
            answer = await self._answered(context, work, frame)
        if answer is not None and plan.throttle_ms:
            answer = _throttled(entry, correlation_id, answer, plan.throttle_ms)
        if end is not None and end.kind is Kind.DROP:
            return None
        if end is not None and end.kind is Kind.DISCONNECT:
            _break(answer, end.value)
        return answer

    async def _pause(self, seconds: float | None) -> None:
        # Run in a task, because asyncio.timeout needs a task.
        if await asyncio.ensure_future(_is_set(self._broken, seconds)):
            raise CloseConnection(_BREAK)

    def _answered(self, context: RequestContext, work: Work, frame: memoryview) -> Steps:
        """Let the dispatcher run a frame."""
        return steps_behind(self._run, context, work, frame)

    async def _failed(
        self,
        context: RequestContext,
        work: Work,
        correlation_id: int,
        seen: Seen,
        end: End,
    ) -> Framed:
        entry, fault, (code, message) = work.entry, end.fault, end.value
        if entry.api.key == _FETCH and code not in _OF_SESSIONS:
            return await self._failed_fetch(context, work, correlation_id, seen, end)
        if entry.api.key == _METADATA:
            return await self._failed_metadata(context, work, correlation_id, seen, end)
        failed, rest = seen.request, None
        if fault.of_a_part:
            failed, _ = part_of(seen.request, fault.keeps, self._name)
            others, some = part_of(seen.request, lambda *each: not fault.keeps(*each), self._name)
            rest = others if some else None
        answer = refusal(entry.api, failed, code, message)
        if rest is not None:
            framed = await self._answered(context, work, _frame(entry, correlation_id, context, rest))
            if framed is not None:
                answer = joined(_message(entry, framed), answer, self._name)
        return _framed(entry, correlation_id, answer)

    async def _failed_metadata(
        self, context: RequestContext, work: Work, correlation_id: int, seen: Seen, end: End
    ) -> Framed:
        """Set the error of topics. Set LEADER_NOT_AVAILABLE for partitions without a leader, as Kafka does."""
        entry, fault = work.entry, end.fault
        framed = await self._answered(context, work, _frame(entry, correlation_id, context, seen.request))
        assert framed is not None
        answer: MetadataResponse = _message(entry, framed)
        code = end.value[0]
        for topic in answer.topics:
            if topic.error_code or ("topic" in fault.filter and topic.name != fault.filter["topic"]):
                continue
            if code != ErrorCode.LEADER_NOT_AVAILABLE:
                topic.error_code, topic.partitions = code, []
                continue
            for each in topic.partitions:
                if fault.keeps(topic.name, each.partition_index):
                    each.error_code, each.leader_id = code, -1
        return _framed(entry, correlation_id, answer)

    async def _failed_fetch(
        self, context: RequestContext, work: Work, correlation_id: int, seen: Seen, end: End
    ) -> Framed:
        """Let the broker fetch without waiting, so that the session continues.

        Replace the records of the answer with errors.
        """
        entry, fault = work.entry, end.fault
        now = _replaced(seen.request, max_wait_ms=0, min_bytes=0)
        framed = await self._answered(context, work, _frame(entry, correlation_id, context, now))
        assert framed is not None
        answer: FetchResponse = _message(entry, framed)
        if answer.error_code:
            return framed
        kept, _ = part_of(answer, lambda *each: not fault.keeps(*each), self._name)
        failures = FetchResponse(responses=[])
        for name, partitions in seen.topics.items():
            known = self._services.controller.state.topics.get(name)
            errors = [
                PartitionData(partition_index=each, error_code=end.value[0], high_watermark=-1, records=b"")
                for each in sorted(partitions)
                if fault.keeps(name, each)
            ]
            if errors:
                topic_id = bytes(16) if known is None else known.topic_id
                failures.responses.append(FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=errors))
        return _framed(entry, correlation_id, joined(kept, failures, self._name))


async def _is_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, with a time limit. Return whether the event was set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await event.wait()
    return False


def _is_of_broker(api: str, request: Any) -> bool:
    """Whether the request itself shows that another broker of the cluster sent it."""
    if isinstance(request, FetchRequest):
        return is_of_follower(request)
    return api in BETWEEN_BROKERS or (api == "OffsetForLeaderEpoch" and request.replica_id >= 0)


def _replaced(request: Any, **values: Any) -> Any:
    other = type(request)(**{spec.name: getattr(request, spec.name) for spec in type(request).SPECS})
    for name, value in values.items():
        setattr(other, name, value)
    return other


def _frame(entry: Entry, correlation_id: int, context: RequestContext, request: Any) -> memoryview:
    """Return the frame of a request, without its size."""
    header = RequestHeader(entry.api.key, entry.version, correlation_id, context.client_id)
    return memoryview(encode(header, 2 if entry.request_tags else 1) + encode(request, entry.version))


def _framed(entry: Entry, correlation_id: int, answer: Any) -> tuple[bytearray, Spill]:
    out, spill = bytearray(), cast("Spill", [])
    encode_answer(entry, correlation_id, answer, out, spill)
    return out, spill


def _message(entry: Entry, framed: tuple[bytearray, Spill]) -> Any:
    return message_of(entry, joined_bytes(framed))


def _throttled(
    entry: Entry, correlation_id: int, framed: tuple[bytearray, Spill], throttle_ms: int
) -> tuple[bytearray, Spill]:
    answer = _message(entry, framed)
    if not hasattr(answer, "throttle_time_ms"):
        return framed
    answer.throttle_time_ms = max(answer.throttle_time_ms, throttle_ms)
    return _framed(entry, correlation_id, answer)


def _break(answer: tuple[bytearray, Spill] | None, when: When) -> None:
    """Send the part of the answer that `when` specifies. Then close the connection."""
    data = b"" if answer is None else joined_bytes(answer)
    sent = {When.MIDDLE: len(data) // 2, When.AFTER: len(data)}.get(when, 0)
    raise CloseConnection(_BREAK, data[:sent])

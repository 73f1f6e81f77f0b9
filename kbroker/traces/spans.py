"""One span a request, exported over OTLP: off the event loop, which only puts what it has measured into a queue.

Owns what a span has, which requests have one, and the thread that makes them. Never measures (network/request_log.py
does), never waits, and never tells what stands in a request: when nobody takes spans, the newest ones are dropped.

Spans are made by OpenTelemetry's SDK, which heeds its own variables (OTEL_EXPORTER_OTLP_*, OTEL_TRACES_SAMPLER,
OTEL_BSP_*, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES). The thread rests as long as it works.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from kbroker.breaks import Breaks
from kbroker.network.request_log import Told
from kbroker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

MOST_WAITING: Final = 4_096
"""Requests that wait for the thread."""
_AT_ONCE: Final = 64
"""Spans of one export, unless OTEL_BSP_MAX_EXPORT_BATCH_SIZE says otherwise: some ms of the interpreter."""
_PATH: Final = "/v1/traces"
_EVERY_S: Final = 0.2
_STOP_S: Final = 5.0
_TURN_S: Final = 0.0005
"""For how long a thread has the interpreter while the event loop wants it: what exports takes no rests of its own."""


class Traces:
    """Makes spans of what it is told, until it is closed."""

    def __init__(self, exporter: SpanExporter, ratio: float = 1.0, about: Mapping[str, str] | None = None) -> None:
        """`ratio` is the share of requests that have a span, 0 to 1; `about` describes the broker."""
        self._exporter = exporter
        self._ratio = ratio
        self._draw: Callable[[], float] = Random().random
        self._waiting: deque[tuple[Told, int]] = deque()
        self.dropped = 0
        """Requests that have no span, as too many waited."""
        self._provider = TracerProvider(resource=_resource(about or {}), shutdown_on_exit=False)
        at_once = int(os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") or _AT_ONCE)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_export_batch_size=at_once))
        self._tracer = self._provider.get_tracer("kbroker")
        self._turn_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self._turn_s, _TURN_S))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kbroker-traces", daemon=True)
        self._thread.start()

    def note(self, told: Told) -> None:
        """Take what was measured of a request that has just been answered; called in the event loop."""
        if self._ratio < 1 and self._draw() >= self._ratio:
            return
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append((told, time.time_ns()))

    def close(self) -> None:
        """Make spans of what waits, and export them, for some seconds at most; not in the event loop."""
        self._ending.set()
        self._thread.join(_STOP_S)
        ending = threading.Thread(target=self._provider.shutdown, name="kbroker-traces-end", daemon=True)
        ending.start()
        ending.join(_STOP_S)
        if ending.is_alive():
            self._exporter.shutdown()  # or it would try for as long as it does while the broker runs
            log.warning("the last spans could not be exported within %.0f s", _STOP_S)
            ending.join(_STOP_S)
        sys.setswitchinterval(self._turn_s)
        if self.dropped:
            log.warning("%d requests have no span: too many waited for it", self.dropped)

    def _run(self) -> None:
        while not self._ending.wait(_EVERY_S):
            self._make_all()
        self._make_all()

    def _make_all(self) -> None:
        breaks = Breaks()
        while self._waiting:
            told, ended_ns = self._waiting.popleft()
            try:
                make_span(self._tracer, told, ended_ns)
            except Exception:
                log.exception("a span could not be made")
            breaks.rest()


def make_span(tracer: Tracer, told: Told, ended_ns: int) -> None:
    """Make the span of one request."""
    attributes: dict[str, str | int | float] = {
        "messaging.system": "kafka",
        "client.address": told.client_host,
        "kafka.api.key": told.api_key,
        "kafka.api.version": told.api_version,
        "kafka.correlation_id": told.correlation_id,
        "kafka.listener": told.listener,
        "kafka.principal": told.principal or "",
        "kafka.request.bytes": told.request_bytes,
        "kafka.response.bytes": told.response_bytes,
        "kafka.work_ms": told.local_ms,
        "kafka.throttle_ms": told.throttle_ms,
    }
    if told.client_id is not None:
        attributes["messaging.client.id"] = told.client_id
    began_ns = ended_ns - int(told.total_ms * 1_000_000)
    span = tracer.start_span(told.api, kind=SpanKind.SERVER, attributes=attributes, start_time=began_ns)
    if told.error_code:
        name = _error_name(told.error_code)
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, name))
    span.end(ended_ns)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _resource(about: Mapping[str, str]) -> Resource:
    """Return what describes the broker; what OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say counts more."""
    return Resource.create({"service.name": "kbroker", **about}).merge(OTELResourceDetector().detect())


def exporter_to(url: str) -> SpanExporter:
    """Return what exports over OTLP/HTTP; without a URL to where the environment says, or to localhost:4318."""
    if not url:
        return OTLPSpanExporter()
    return OTLPSpanExporter(endpoint=url if urlsplit(url).path.strip("/") else url.rstrip("/") + _PATH)

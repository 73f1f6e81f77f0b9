"""Creates one span per request, with OpenTelemetry's SDK.

Owns the content of a span, the destination of exports, and the time limit of the last exports. Runs in a process of its
own (process.py). The SDK reads its own environment variables (OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_*).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from kbroker.network.request_log import Measured
from kbroker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)

STOP_S: Final = 5.0
"""The maximum time in seconds for the export of the last spans."""
_PATH: Final = "/v1/traces"


class Spans:
    """Creates spans from measurements, and exports them, until it is closed."""

    def __init__(self, exporter: SpanExporter, about: Mapping[str, str] | None = None) -> None:
        """Create the exporter. `about` describes the broker."""
        self._provider = TracerProvider(resource=_resource(about or {}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("kbroker")

    def take(self, measured: Measured, ended_ns: int) -> None:
        """Create the span of one request."""
        try:
            make_span(self._tracer, measured, ended_ns)
        except Exception:
            log.exception("a span could not be made")

    def close(self) -> None:
        """Export the remaining spans for at most some seconds. Spans that are not exported by then are lost."""
        ending = threading.Thread(target=self._provider.shutdown, name="kbroker-traces-end", daemon=True)
        ending.start()
        ending.join(STOP_S)
        if ending.is_alive():
            log.warning("the last spans could not be exported within %.0f s", STOP_S)


def make_span(tracer: Tracer, measured: Measured, ended_ns: int) -> None:
    """Create the span of one request."""
    attributes: dict[str, str | int | float] = {
        "messaging.system": "kafka",
        "client.address": measured.client_host,
        "kafka.api.key": measured.api_key,
        "kafka.api.version": measured.api_version,
        "kafka.correlation_id": measured.correlation_id,
        "kafka.listener": measured.listener,
        "kafka.principal": measured.principal or "",
        "kafka.request.bytes": measured.request_bytes,
        "kafka.response.bytes": measured.response_bytes,
        "kafka.work_ms": measured.local_ms,
        "kafka.throttle_ms": measured.throttle_ms,
    }
    if measured.client_id is not None:
        attributes["messaging.client.id"] = measured.client_id
    began_ns = ended_ns - int(measured.total_ms * 1_000_000)
    span = tracer.start_span(measured.api, kind=SpanKind.SERVER, attributes=attributes, start_time=began_ns)
    if measured.error_code:
        name = _error_name(measured.error_code)
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, name))
    span.end(ended_ns)


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _resource(about: Mapping[str, str]) -> Resource:
    """Return the attributes of the broker. OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME override them."""
    return Resource.create({"service.name": "kbroker", **about}).merge(OTELResourceDetector().detect())


def exporter_to(url: str) -> SpanExporter:
    """Return an exporter over OTLP/HTTP. Without a URL, use the environment's address or localhost:4318."""
    if not url:
        return OTLPSpanExporter()
    return OTLPSpanExporter(endpoint=url if urlsplit(url).path.strip("/") else url.rstrip("/") + _PATH)

"""Where spans go: over OTLP/HTTP, by OpenTelemetry's exporter, which heeds its own variables (OTEL_EXPORTER_OTLP_*)."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter

_PATH: Final = "/v1/traces"


def exporter_to(url: str) -> SpanExporter:
    """Return what exports over OTLP/HTTP; without a URL to where the environment says, or to localhost:4318."""
    if not url:
        return OTLPSpanExporter()
    return OTLPSpanExporter(endpoint=url if urlsplit(url).path.strip("/") else url.rstrip("/") + _PATH)

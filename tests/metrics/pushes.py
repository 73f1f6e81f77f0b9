"""MetricsData as clients would push it, made with OpenTelemetry's own classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from kbroker.telemetry.instances import Client, Push

MOST = 16 << 20
"""The most bytes to which a push may decompress."""


def attributes(texts: Mapping[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items()]


def number(value: float, texts: Mapping[str, str] | None = None) -> NumberDataPoint:
    if isinstance(value, int):
        return NumberDataPoint(as_int=value, attributes=attributes(texts or {}))
    return NumberDataPoint(as_double=value, attributes=attributes(texts or {}))


def gauge(name: str, value: float, /, **texts: str) -> Metric:
    return Metric(name=name, gauge=Gauge(data_points=[number(value, texts)]))


def total(name: str, value: float, /, *, delta: bool = True, monotonic: bool = True, **texts: str) -> Metric:
    temporality = AGGREGATION_TEMPORALITY_DELTA if delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    points = [number(value, texts)]
    return Metric(name=name, sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=monotonic))


def histogram(name: str, bounds: Sequence[float], counts: Sequence[int], sum_: float, *, delta: bool = True) -> Metric:
    temporality = AGGREGATION_TEMPORALITY_DELTA if delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    point = HistogramDataPoint(explicit_bounds=bounds, bucket_counts=counts, sum=sum_, count=sum(counts))
    return Metric(name=name, histogram=Histogram(data_points=[point], aggregation_temporality=temporality))


def data(*metrics: Metric, **resource: str) -> bytes:
    scope = ScopeMetrics(metrics=metrics)
    one = ResourceMetrics(resource=Resource(attributes=attributes(resource)), scope_metrics=[scope])
    return MetricsData(resource_metrics=[one]).SerializeToString()


def client(index: int = 1, client_id: str = "app") -> Client:
    return Client(index.to_bytes(16, "big"), client_id, "software", "1.2", "10.0.0.7", "User:alice")


def push(*metrics: Metric, terminating: bool = False, interval_ms: int = 1000, **resource: str) -> Push:
    return Push(0, data(*metrics, **resource), interval_ms, terminating, MOST)

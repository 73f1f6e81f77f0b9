"""Clients' metrics (KIP-714)."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, message

# GetTelemetrySubscriptions (key 71): the metrics that a client should push, and how often (KIP-714).


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    client_instance_id: Uuid = f()


@message(key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    client_instance_id: Uuid = f()
    subscription_id: i32 = f()
    accepted_compression_types: list[i8] = f()
    push_interval_ms: i32 = f()
    telemetry_max_bytes: i32 = f()
    delta_temporality: bool = f()
    requested_metrics: list[str] = f()


# PushTelemetry (key 72): a client's own metrics, as OpenTelemetry's MetricsData, compressed (KIP-714).


@message(key=72, versions="0", flexible="0+")
class PushTelemetryRequest:
    client_instance_id: Uuid = f()
    subscription_id: i32 = f()
    terminating: bool = f()
    compression_type: i8 = f()
    metrics: bytes = f()


@message(key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()

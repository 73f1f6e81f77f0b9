"""PushTelemetry (key 72): a client's own metrics, as OpenTelemetry's MetricsData, compressed (KIP-714)."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, message


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

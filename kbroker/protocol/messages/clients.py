"""The quotas (KIP-546) and the metrics (KIP-714) of clients."""

from kbroker.protocol.schema import Uuid, f, f64, i8, i16, i32, message, struct

# DescribeClientQuotas (key 48): the quotas of users, client ids and addresses (KIP-546).


@struct
class ComponentData:
    entity_type: str = f()
    match_type: i8 = f()
    match: str | None = f(nullable="0+")


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    components: list[ComponentData] = f()
    strict: bool = f()


@struct
class EntityData:
    entity_type: str = f()
    entity_name: str | None = f(nullable="0+")


@struct
class ValueData:
    key: str = f()
    value: f64 = f()


@struct
class EntryData:
    entity: list[EntityData] = f()
    values: list[ValueData] = f()


@message(key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    entries: list[EntryData] | None = f(nullable="0+")


# AlterClientQuotas (key 49): set and remove quotas of users, client ids and addresses (KIP-546).


@struct
class AlteredEntity:
    entity_type: str = f()
    entity_name: str | None = f(nullable="0+")


@struct
class OpData:
    key: str = f()
    value: f64 = f()
    remove: bool = f()


@struct
class AlteredEntry:
    entity: list[AlteredEntity] = f()
    ops: list[OpData] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[AlteredEntry] = f()
    validate_only: bool = f()


@struct
class AlteredEntryData:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    entity: list[AlteredEntity] = f()


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: i32 = f()
    entries: list[AlteredEntryData] = f()


# GetTelemetrySubscriptions (key 71): the metrics that a client should push, and the interval (KIP-714).


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

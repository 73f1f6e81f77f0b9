"""The APIs of the metrics that clients push (KIP-714).

Owns the common part of these APIs: the client instance of a connection. As in Kafka, the instance ends with the
connection that created it. Never decides about subscriptions or pushes: the package `telemetry` decides.

GetTelemetrySubscriptions (key 71), version 0: the metrics that a client should push, and the interval between pushes
(KIP-714).

Behaviour: a single node serves the API, and advertises it only if it has a receiver for the metrics, as in Kafka. Every
client that is allowed to connect may send the request.

PushTelemetry (key 72), version 0: metrics that a client has measured about itself (KIP-714).

Behaviour: the response waits until the receiver has accepted the metrics. The error for unreadable metrics is
INVALID_RECORD, after which clients stop pushing. Without a receiver the broker decompresses and drops the metrics, as
in Kafka.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from kbroker.config import client_match
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import Services
from kbroker.long_work import turn
from kbroker.protocol.compression import unpack
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.clients import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from kbroker.protocol.wire import RESERVED_UUIDS, uuid_text
from kbroker.telemetry.instances import Client, ClientTelemetry, Instance, Push, Receiver
from kbroker.telemetry.subscriptions import Texts

log = logging.getLogger(__name__)

_UNKNOWN: Final = "unknown"
"""The software name of a client that did not send one (ApiVersions before v3)."""
CODECS: Final = (4, 3, 1, 2)
"""The compression types offered to clients, the best first: zstd, lz4, gzip, snappy."""


def is_received(services: Services) -> bool:
    """Whether there is a receiver for clients' metrics. Without a receiver the broker does not advertise the APIs."""
    return services.telemetry is not None and services.telemetry.receiver is not None


def telemetry_of(ctx: RequestContext) -> ClientTelemetry:
    """Return the broker's telemetry. Raises ApiError in a cluster, which stores no subscriptions."""
    if ctx.services.telemetry is None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return ctx.services.telemetry


def now_ms(ctx: RequestContext) -> float:
    """Return the monotonic time in whole ms, like Kafka."""
    return ctx.services.clock.monotonic_ms() // 1


async def instance_of(ctx: RequestContext, telemetry: ClientTelemetry, instance_id: bytes) -> Instance:
    """Return the client instance that sent the request."""
    instance, made = await telemetry.of(instance_id, _texts(ctx), now_ms(ctx))
    if made:
        ctx.when_closed(telemetry, partial(telemetry.forget, instance_id))
    return instance


def _software(ctx: RequestContext) -> tuple[str, str]:
    name, version = ctx.client_software
    return name or _UNKNOWN, version or _UNKNOWN


def _texts(ctx: RequestContext) -> Texts:
    name, version = _software(ctx)
    return {
        client_match.CLIENT_ID: ctx.client_id,
        client_match.CLIENT_SOFTWARE_NAME: name,
        client_match.CLIENT_SOFTWARE_VERSION: version,
        client_match.CLIENT_SOURCE_ADDRESS: ctx.client_host.removeprefix("/"),
        client_match.CLIENT_SOURCE_PORT: str(ctx.client_port),
    }


def client_of(ctx: RequestContext, instance_id: bytes) -> Client:
    """Return the client's data for the receiver."""
    name, version = _software(ctx)
    address = ctx.client_host.removeprefix("/")
    return Client(instance_id, ctx.client_id or "", name, version, address, str(ctx.principal))


@handles(GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse, "0", advertised=is_received)
async def get_telemetry_subscriptions(
    ctx: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that a client should push, and an instance id for a client without one."""
    telemetry = telemetry_of(ctx)
    instance_id = telemetry.id_for(bytes(request.client_instance_id))
    instance = await instance_of(ctx, telemetry, instance_id)
    error = telemetry.asked(instance, now_ms(ctx))
    if error is not ErrorCode.NONE:
        return GetTelemetrySubscriptionsResponse(error_code=error)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=instance.subscription_id,
        accepted_compression_types=list(CODECS),
        push_interval_ms=instance.wanted.interval_ms,
        telemetry_max_bytes=telemetry.max_bytes,
        delta_temporality=True,
        requested_metrics=list(instance.wanted.metrics),
    )


@handles(PushTelemetryRequest, PushTelemetryResponse, "0", advertised=is_received)
async def push_telemetry(ctx: RequestContext, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Refuse a push that is too early, too large or for other subscriptions. Pass other pushes to the receiver."""
    telemetry = telemetry_of(ctx)
    instance_id = bytes(request.client_instance_id)
    if instance_id in RESERVED_UUIDS:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    instance = await instance_of(ctx, telemetry, instance_id)
    error = telemetry.pushed(instance, request, now_ms(ctx))
    if error is not ErrorCode.NONE:
        return PushTelemetryResponse(error_code=error)
    receiver = telemetry.receiver
    if receiver is not None and request.metrics:
        data = bytes(request.metrics)
        interval_ms, most_bytes = instance.wanted.interval_ms, telemetry.max_bytes
        push = Push(request.compression_type, data, interval_ms, request.terminating, most_bytes)
        return await _export(telemetry, receiver, instance, client_of(ctx, instance_id), push)
    if receiver is not None and request.terminating:
        receiver.forget(instance_id)
    try:
        for _piece in unpack(request.compression_type, request.metrics, telemetry.max_bytes) if request.metrics else ():
            await turn
    except Malformed:
        return _failed(telemetry, instance, ErrorCode.INVALID_RECORD)
    return PushTelemetryResponse()


async def _export(
    telemetry: ClientTelemetry, receiver: Receiver, instance: Instance, client: Client, push: Push
) -> PushTelemetryResponse:
    try:
        await receiver.export(client, push)
    except ApiError as error:
        return _failed(telemetry, instance, error.code)
    except Exception as error:  # noqa: BLE001 - a receiver may raise anything: it is not part of the broker
        log.warning(
            "the metrics pushed by client instance %s were not accepted: %s", uuid_text(client.instance_id), error
        )
        return _failed(telemetry, instance, ErrorCode.INVALID_RECORD)
    telemetry.exported += 1
    instance.last_error = ErrorCode.NONE
    return PushTelemetryResponse()


def _failed(telemetry: ClientTelemetry, instance: Instance, code: ErrorCode) -> PushTelemetryResponse:
    telemetry.failed += 1
    instance.last_error = code
    return PushTelemetryResponse(error_code=code)

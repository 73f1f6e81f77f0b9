"""PushTelemetry (key 72), version 0: what a client has measured of itself (KIP-714).

Behaviour: the answer waits until the receiver has taken what was pushed, so that what cannot be read is INVALID_RECORD,
after which clients push no more. Without a receiver it is unpacked and dropped, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.telemetry_clients import client_of, instance_of, is_received, now_ms, telemetry_of
from kbroker.protocol.compression import unpack
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.client_telemetry import PushTelemetryRequest, PushTelemetryResponse
from kbroker.protocol.uuids import RESERVED_UUIDS, uuid_text
from kbroker.telemetry.instances import ClientTelemetry, Instance
from kbroker.telemetry.receiver import MOST_UNPACKED_BYTES, Client, Push, Receiver

log = logging.getLogger(__name__)


@handles(PushTelemetryRequest, PushTelemetryResponse, "0", advertised=is_received)
def push_telemetry(
    ctx: RequestContext, request: PushTelemetryRequest
) -> Divided[PushTelemetryResponse | Awaitable[PushTelemetryResponse]]:
    """Refuse what comes too early, is too large, or goes by other subscriptions; hand the rest to the receiver."""
    telemetry = telemetry_of(ctx)
    instance_id = bytes(request.client_instance_id)
    if instance_id in RESERVED_UUIDS:
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    instance = yield from instance_of(ctx, telemetry, instance_id)
    error = telemetry.pushed(instance, request, now_ms(ctx))
    if error is not ErrorCode.NONE:
        return PushTelemetryResponse(error_code=error)
    receiver = telemetry.receiver
    if receiver is not None and request.metrics:
        data = bytes(request.metrics)
        push = Push(request.compression_type, data, instance.wanted.interval_ms, request.terminating)
        return _export(telemetry, receiver, instance, client_of(ctx, instance_id), push)
    if receiver is not None and request.terminating:
        receiver.forget(instance_id)
    try:
        for _piece in unpack(request.compression_type, request.metrics, MOST_UNPACKED_BYTES) if request.metrics else ():
            yield
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
    except Exception as error:  # noqa: BLE001 - whatever a receiver raises: it is not the broker's part
        log.warning("what client instance %s pushed was not taken: %s", uuid_text(client.instance_id), error)
        return _failed(telemetry, instance, ErrorCode.INVALID_RECORD)
    telemetry.exported += 1
    instance.last_error = ErrorCode.NONE
    return PushTelemetryResponse()


def _failed(telemetry: ClientTelemetry, instance: Instance, code: ErrorCode) -> PushTelemetryResponse:
    telemetry.failed += 1
    instance.last_error = code
    return PushTelemetryResponse(error_code=code)

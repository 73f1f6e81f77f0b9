"""GetTelemetrySubscriptions (key 71), version 0: which metrics a client is to push, and how often (KIP-714).

Behaviour: served on a node alone, and advertised where somebody takes what is pushed, as in Kafka. Whoever may connect
may ask.
"""

from __future__ import annotations

from typing import Final

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.telemetry_clients import instance_of, is_received, now_ms, telemetry_of
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.client_telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

CODECS: Final = (4, 3, 1, 2)
"""That are offered, the best first: zstd, lz4, gzip, snappy."""


@handles(GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse, "0", advertised=is_received)
def get_telemetry_subscriptions(
    ctx: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> Divided[GetTelemetrySubscriptionsResponse]:
    """Answer with what the subscriptions come to for a client, which gets an id where it has none."""
    telemetry = telemetry_of(ctx)
    instance_id = telemetry.id_for(bytes(request.client_instance_id))
    instance = yield from instance_of(ctx, telemetry, instance_id)
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

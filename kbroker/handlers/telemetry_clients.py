"""What the two APIs of clients' metrics have in common: who asks, by his connection.

Owns that an instance ends with the connection by which it was made, as in Kafka. Never decides: telemetry/ does.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kbroker.config import client_match
from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext
from kbroker.handlers.services import Services
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.telemetry.instances import ClientTelemetry, Instance
from kbroker.telemetry.receiver import Client
from kbroker.telemetry.subscriptions import Texts

_UNKNOWN: Final = "unknown"
"""The software of a client that has not said which it is (ApiVersions before v3)."""


def is_received(services: Services) -> bool:
    """Whether somebody takes what clients push: only then they are told that they may."""
    return services.telemetry is not None and services.telemetry.receiver is not None


def telemetry_of(ctx: RequestContext) -> ClientTelemetry:
    """Return the broker's telemetry; raises ApiError in a cluster, which has no subscriptions."""
    if ctx.services.telemetry is None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return ctx.services.telemetry


def now_ms(ctx: RequestContext) -> float:
    """Return the time by the clock that does not go back, in whole ms as Kafka has it."""
    return ctx.services.clock.monotonic_ms() // 1


def instance_of(ctx: RequestContext, telemetry: ClientTelemetry, instance_id: bytes) -> Divided[Instance]:
    """Return the instance of who asks."""
    instance, made = yield from telemetry.of(instance_id, _texts(ctx), now_ms(ctx))
    if made:
        ctx.on_closed = partial(telemetry.forget, instance_id)
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
    """Return what a receiver is told of who asks."""
    name, version = _software(ctx)
    address = ctx.client_host.removeprefix("/")
    return Client(instance_id, ctx.client_id or "", name, version, address, str(ctx.principal))

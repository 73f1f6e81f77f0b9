"""IncrementalAlterConfigs (key 44), versions 0-1: set, delete, append to and subtract from configs (KIP-339).

Behaviour: levels of loggers are set in this process (KIP-412), nothing of them is stored.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping

from kbroker.config.loggers import check_levels, set_levels
from kbroker.config.model import ConfigKey
from kbroker.config.operations import Op, apply_broker_ops, apply_ops
from kbroker.config.table import GROUP as GROUP_KEYS
from kbroker.config.table import TOPIC as TOPIC_KEYS
from kbroker.divided import Divided, each
from kbroker.handlers.config_changes import KINDS, change, check_request, outcomes
from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalResource,
    IncrementalResourceResponse,
)

_KEYS: Mapping[int, Mapping[str, ConfigKey]] = {TOPIC: TOPIC_KEYS, GROUP: GROUP_KEYS, CLIENT_METRICS: {}}
"""To append to and subtract from: Kafka's controller knows no types of client metrics' keys, and refuses both."""
_OPERATIONS = frozenset(int(op) for op in Op)


def _on_error(
    request: IncrementalAlterConfigsRequest, code: int, message: str | None
) -> Divided[IncrementalAlterConfigsResponse]:
    responses = yield from each(request.resources, lambda resource: _answer(resource, code, message))
    return IncrementalAlterConfigsResponse(responses=responses)


def _answer(resource: IncrementalResource, code: int, message: str | None) -> IncrementalResourceResponse:
    return IncrementalResourceResponse(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, "0-1", _on_error)
def incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> Divided[IncrementalAlterConfigsResponse | Awaitable[IncrementalAlterConfigsResponse]]:
    """Change each resource by itself."""
    done = yield from outcomes(request.resources, lambda resource: _alter(ctx, resource, request.validate_only))
    responses = yield from each(done, lambda outcome: _answer(*outcome))
    return in_effect(ctx, IncrementalAlterConfigsResponse(responses=responses))


def _alter(ctx: RequestContext, resource: IncrementalResource, validate_only: bool) -> Divided[None]:
    kind = resource.resource_type
    entries = ((c.name, "" if c.config_operation == Op.DELETE else c.value) for c in resource.configs)
    yield from check_request(entries, (*KINDS, BROKER_LOGGER), kind)
    ops = []
    for config in resource.configs:
        if config.config_operation not in _OPERATIONS:
            text = f"Unknown operations type {config.config_operation}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        ops.append((config.name, Op(config.config_operation), config.value))
    if kind == BROKER_LOGGER:
        _alter_levels(ctx, resource.resource_name, ops, validate_only)
        return
    name = resource.resource_name
    if kind == BROKER:
        yield from change(ctx, kind, name, lambda old: apply_broker_ops(old, ops), validate_only=validate_only)
        return
    keys = _KEYS[kind]
    yield from change(ctx, kind, name, lambda old: apply_ops(keys, old, ops), validate_only=validate_only)


def _alter_levels(ctx: RequestContext, name: str, ops: list[tuple[str, Op, str | None]], validate_only: bool) -> None:
    node_id = ctx.services.node_id
    if re.fullmatch(r"[-+]?[0-9]+", name, re.ASCII) is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if int(name) != node_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {node_id}, but received {name}")
    check_levels(ops)
    if not validate_only:
        set_levels(ops)
        ctx.services.on_levels_changed()

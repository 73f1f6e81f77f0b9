"""The APIs that change configs.

AlterConfigs and IncrementalAlterConfigs share the checks of a resource, and the code that stores its configs.

Owns the order of checks (ConfigAdminManager, then the controller's validator). The shared part does not depend on the
request's type.

AlterConfigs (key 33), versions 0-2: replace all configs of a resource (KIP-133).

IncrementalAlterConfigs (key 44), versions 0-1: set, delete, append to and subtract from configs (KIP-339).

Behaviour: logger levels apply only to this process (KIP-412) and are not stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kbroker.config.changes_while_running import validate_broker
from kbroker.config.loggers import check_levels, set_levels
from kbroker.config.model import ConfigKey
from kbroker.config.operations import Op, apply_broker_ops, apply_ops
from kbroker.config.table import GROUP as GROUP_KEYS
from kbroker.config.table import TOPIC as TOPIC_KEYS
from kbroker.config.validation import validate_client_metrics, validate_group, validate_topic
from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, check_keeps_groups
from kbroker.handlers.groups import counted
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import check_effect, look_for_effect
from kbroker.handlers.view_rules import check_change
from kbroker.long_work import each, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalResource,
    IncrementalResourceResponse,
)
from kbroker.topic_names import check_topic_name

R = TypeVar("R", bound="Resource")
MAX_CONFIGS = 1_000
"""The maximum number of configs of a resource in one request.

Kafka allows 10,000 in all; no resource has so many config keys.
"""
KINDS = {TOPIC: "topics", BROKER: "brokers", GROUP: "groups", CLIENT_METRICS: "client-metrics"}
_KEYS: Mapping[int, Mapping[str, ConfigKey]] = {TOPIC: TOPIC_KEYS, GROUP: GROUP_KEYS, CLIENT_METRICS: {}}
"""The keys that allow append and subtract.

For client metrics there are none: Kafka's controller does not know the types of their configs, and refuses both
operations.
"""
_OPERATIONS = frozenset(int(op) for op in Op)
_Result = TypeVar("_Result", AlterConfigsResourceResponse, IncrementalResourceResponse)


class Resource(Protocol):
    """A resource in a request of either API."""

    resource_type: int
    resource_name: str


async def outcomes(
    resources: Sequence[R], alter: Callable[[R], Coroutine[Any, Any, None]]
) -> list[tuple[R, int, str | None]]:
    """Change each resource independently; return the error codes and messages. Refuse a resource that is repeated."""
    seen = await counted((resource.resource_type, resource.resource_name) for resource in resources)
    found: list[tuple[R, int, str | None]] = []
    for resource in resources:
        try:
            if seen[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            await alter(resource)
        except ApiError as err:
            found.append((resource, err.code, err.message or DEFAULT_MESSAGES.get(err.code)))
        else:
            found.append((resource, 0, None))
        await turn
    return found


async def check_request(entries: Iterable[tuple[str, str | None]], kinds: Collection[int], resource_type: int) -> None:
    """Do the checks that need no resource: duplicate keys, null values, and a type that is not in `kinds`."""
    names: set[str] = set()
    nulls: list[str] = []
    for name, value in entries:
        if name in names:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        names.add(name)
        if value is None:
            nulls.append(name)
        await turn
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if resource_type not in kinds:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    if len(names) > MAX_CONFIGS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


def check_resource(ctx: RequestContext, resource_type: int, name: str) -> None:
    """Raise ApiError if the resource does not exist."""
    if resource_type == TOPIC:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        if name not in ctx.services.controller.decided.topics:
            check_topic_name(name)
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif resource_type == GROUP:
        check_keeps_groups(ctx)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    elif resource_type == CLIENT_METRICS:
        if ctx.services.cluster is not None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscriptions are not kept by this broker.")
    elif name:
        _check_node(ctx, name)


def _check_node(ctx: RequestContext, name: str) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}") from None
    if asked != ctx.services.node_id:
        text = f"Unexpected broker id, expected {ctx.services.node_id}, but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


async def change(
    ctx: RequestContext,
    resource_type: int,
    name: str,
    compute: Callable[[Mapping[str, str]], dict[str, str]],
    *,
    validate_only: bool,
) -> None:
    """Compute a resource's new configs from its old ones, check them and, without `validate_only`, store them."""
    config = ctx.services.config
    is_same = False

    def revise(stored: Mapping[str, str]) -> dict[str, str]:
        nonlocal is_same
        current = config.stored.read(stored) if resource_type == BROKER else stored
        configs = compute(current)
        is_same = configs == current
        if resource_type == TOPIC:
            validate_topic(config, configs)
            check_effect(ctx.services, name, current, configs)
            check_change(ctx, name, current, configs)
        elif resource_type == GROUP:
            validate_group(config, configs)
        elif resource_type == CLIENT_METRICS:
            validate_client_metrics(name, configs)
        else:
            validate_broker(config, configs, per_broker=bool(name))
            ctx.services.tls.check(config.with_dynamic(configs, per_broker=bool(name)))
            return config.stored.write(configs, stored)
        return configs

    check_resource(ctx, resource_type, name)
    controller, kind = ctx.services.controller, KINDS[resource_type]
    if resource_type == TOPIC:
        current = controller.decided.configs(kind, name)
        await look_for_effect(ctx.services, current, compute(current))
    if validate_only:
        revise(controller.decided.configs(kind, name))
    else:
        await controller.change_configs(kind, name, revise)
        if is_same and resource_type == BROKER and name:
            config.resolve_again()
            ctx.services.tls.follow(config)  # the files that the configs name may have new content


def _result(result: type[_Result], resource: Resource, code: int, message: str | None) -> _Result:
    return result(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(AlterConfigsRequest, AlterConfigsResponse, "0-2", mirrored(AlterConfigsResponse, "resources"))
async def alter_configs(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Change each resource independently of the others."""
    done = await outcomes(request.resources, lambda resource: _replace(ctx, resource, request.validate_only))
    responses = await each(done, lambda outcome: _result(AlterConfigsResourceResponse, *outcome))
    return await ctx.services.in_effect(AlterConfigsResponse(responses=responses))


async def _replace(ctx: RequestContext, resource: AlterConfigsResource, validate_only: bool) -> None:
    await check_request(((c.name, c.value) for c in resource.configs), KINDS, resource.resource_type)
    configs = {c.name: c.value or "" for c in resource.configs}
    kind, name = resource.resource_type, resource.resource_name
    await change(ctx, kind, name, lambda _old: configs, validate_only=validate_only)


@handles(
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    "0-1",
    mirrored(IncrementalAlterConfigsResponse, "resources"),
)
async def incremental_alter_configs(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change each resource independently of the others."""
    done = await outcomes(request.resources, lambda resource: _change(ctx, resource, request.validate_only))
    responses = await each(done, lambda outcome: _result(IncrementalResourceResponse, *outcome))
    return await ctx.services.in_effect(IncrementalAlterConfigsResponse(responses=responses))


async def _change(ctx: RequestContext, resource: IncrementalResource, validate_only: bool) -> None:
    kind = resource.resource_type
    entries = ((c.name, "" if c.config_operation == Op.DELETE else c.value) for c in resource.configs)
    await check_request(entries, (*KINDS, BROKER_LOGGER), kind)
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
        await change(ctx, kind, name, lambda old: apply_broker_ops(old, ops), validate_only=validate_only)
        return
    keys = _KEYS[kind]
    await change(ctx, kind, name, lambda old: apply_ops(keys, old, ops), validate_only=validate_only)


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

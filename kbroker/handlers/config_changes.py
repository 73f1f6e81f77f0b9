"""What AlterConfigs and IncrementalAlterConfigs have in common: checking a resource, storing its configs.

Owns the order of checks (ConfigAdminManager, then the controller's validator). Never knows the request's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from kbroker.config.changes_while_running import validate_broker
from kbroker.config.validation import validate_client_metrics, validate_group, validate_topic
from kbroker.divided import Divided
from kbroker.handlers.describe_configs import BROKER, CLIENT_METRICS, GROUP, TOPIC, check_keeps_groups
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.topic_names import check_topic_name

R = TypeVar("R", bound="Resource")

MAX_CONFIGS = 1_000
"""Of one resource in one request. Kafka's controller has 10,000 for a whole request; no resource has so many keys."""
KINDS = {TOPIC: "topics", BROKER: "brokers", GROUP: "groups", CLIENT_METRICS: "client-metrics"}


class Resource(Protocol):
    """What both requests name."""

    resource_type: int
    resource_name: str


def outcomes(resources: Sequence[R], alter: Callable[[R], Divided[None]]) -> Divided[list[tuple[R, int, str | None]]]:
    """Change each resource by itself; return error code and message of each. One that is named twice is refused."""
    seen: dict[tuple[int, str], int] = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        seen[key] = seen.get(key, 0) + 1
        yield
    found: list[tuple[R, int, str | None]] = []
    for resource in resources:
        try:
            if seen[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            yield from alter(resource)
        except ApiError as err:
            found.append((resource, err.code, err.message or DEFAULT_MESSAGES.get(err.code)))
        else:
            found.append((resource, 0, None))
        yield
    return found


def check_request(
    entries: Iterable[tuple[str, str | None]], kinds: Collection[int], resource_type: int
) -> Divided[None]:
    """Check what can be said without knowing the resource: duplicate keys, null values, a type not among `kinds`."""
    names: set[str] = set()
    nulls: list[str] = []
    for name, value in entries:
        if name in names:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        names.add(name)
        if value is None:
            nulls.append(name)
        yield
    if nulls:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")
    if resource_type not in kinds:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    if len(names) > MAX_CONFIGS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


def check_resource(ctx: RequestContext, resource_type: int, name: str) -> None:
    """Raise ApiError when there is no such resource."""
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


def change(
    ctx: RequestContext,
    resource_type: int,
    name: str,
    compute: Callable[[Mapping[str, str]], dict[str, str]],
    *,
    validate_only: bool,
) -> Divided[None]:
    """Compute a resource's new configs from its old ones, check them, and store them unless `validate_only`."""
    config = ctx.services.config
    is_same = False

    def revise(stored: Mapping[str, str]) -> dict[str, str]:
        nonlocal is_same
        current = config.stored.read(stored) if resource_type == BROKER else stored
        configs = compute(current)
        is_same = configs == current
        if resource_type == TOPIC:
            validate_topic(config, configs)
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
    if validate_only:
        revise(controller.decided.configs(kind, name))
    else:
        yield from controller.change_configs(kind, name, revise)
        if is_same and resource_type == BROKER and name:
            config.look_up_again()
            ctx.services.tls.follow(config)  # the files that its configs name may have been replaced

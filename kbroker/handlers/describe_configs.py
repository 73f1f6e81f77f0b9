"""DescribeConfigs (key 32), versions 1-4: configs of topics, brokers and groups, and where they come from."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.config.describe import (
    Described,
    describe_broker,
    describe_broker_default,
    describe_group,
    describe_loggers,
    describe_topic,
)
from kbroker.controller.decide import check_topic_name
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def _on_error(request: DescribeConfigsRequest, code: int, _message: str | None) -> DescribeConfigsResponse:
    text = DEFAULT_MESSAGES.get(ErrorCode(code))
    return DescribeConfigsResponse(results=[_failed(r, code, text) for r in request.resources])


def _failed(resource: DescribeConfigsResource, code: int, message: str | None) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(DescribeConfigsRequest, DescribeConfigsResponse, "1-4", _on_error)
def describe_configs(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe each resource by itself."""
    results = []
    for resource in request.resources:
        if resource.resource_type not in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP):
            text = f"Unexpected resource type UNKNOWN for resource {resource.resource_name}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        try:
            entries = _entries(ctx, resource)
        except ApiError as err:
            results.append(_failed(resource, err.code, err.message))
            continue
        results.append(_result(request, resource, entries))
    return DescribeConfigsResponse(results=results)


def _entries(ctx: RequestContext, resource: DescribeConfigsResource) -> list[Described]:
    config, state, name = ctx.services.config, ctx.services.controller.state, resource.resource_name
    if resource.resource_type == TOPIC:
        check_topic_name(name)
        if name not in state.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return describe_topic(config, state.topics[name].configs)
    if resource.resource_type == GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(config, state.group_configs.get(name, {}))
    if resource.resource_type == CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        return []
    if resource.resource_type == BROKER_LOGGER:
        _check_broker(ctx, name, "Broker id must not be empty")
        return describe_loggers()
    if not name:
        return describe_broker_default(config)
    _check_broker(ctx, name, "")
    return describe_broker(config)


def _check_broker(ctx: RequestContext, name: str, when_empty: str) -> None:
    own = ctx.services.node_id
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, when_empty)
    try:
        asked = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if asked != own:
        choice = f"{own}" if when_empty else f"{own} or empty string,"
        text = f"Unexpected broker id, expected {choice} but received {name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


def _result(
    request: DescribeConfigsRequest, resource: DescribeConfigsResource, entries: Iterable[Described]
) -> DescribeConfigsResult:
    wanted = resource.configuration_keys
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[_entry(request, e) for e in entries if not wanted or e.name in wanted],
    )


def _entry(request: DescribeConfigsRequest, entry: Described) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=(
            [DescribeConfigsSynonym(name, value, source) for name, value, source in entry.synonyms]
            if request.include_synonyms
            else []
        ),
        config_type=entry.type,
        documentation=entry.doc if request.include_documentation or entry.doc == "" else None,
    )

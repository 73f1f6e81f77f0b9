"""The APIs that return configs, and the names of resources that have configs.

DescribeConfigs (key 32), versions 1-4: configs of topics, brokers and other resources, with their sources.

ListConfigResources (key 74), versions 0-1: names of resources that have configs (KIP-714, KIP-1142).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.config.describe import (
    Described,
    describe_broker,
    describe_broker_default,
    describe_client_metrics,
    describe_group,
    describe_loggers,
    describe_topic,
)
from kbroker.controller.features import GROUP_VERSION
from kbroker.handlers.groups import MAX_REPEATED_BYTES, distinct
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.configs import (
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kbroker.topic_names import check_topic_name

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def _failed(resource: DescribeConfigsResource, code: int, message: str | None) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@handles(
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    "1-4",
    mirrored(DescribeConfigsResponse, "resources", default_message=True),
)
async def describe_configs(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Describe each resource independently of the others."""
    views = _Views(ctx, request)
    results = []
    for resource in request.resources:
        if resource.resource_type not in (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP):
            text = f"Unexpected resource type UNKNOWN for resource {resource.resource_name}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        wanted = await _wanted(resource)
        try:
            configs = views.of(resource, wanted)
        except ApiError as err:
            results.append(_failed(resource, err.code, err.message))
        else:
            results.append(
                DescribeConfigsResult(
                    resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
                )
            )
        await turn
    return DescribeConfigsResponse(results=results)


async def _wanted(resource: DescribeConfigsResource) -> dict[str, int]:
    """Return the requested keys, each with its position in the response. An empty result means all keys."""
    wanted: dict[str, int] = {}
    for key in resource.configuration_keys or ():
        wanted.setdefault(key, len(wanted))
        await turn
    return wanted


class _Views:
    """The configs of a request's resources. Each resource is looked up once; topics with equal configs share a result.

    A few bytes in a request can repeat a resource, and the response then repeats all its configs. Therefore the number
    of repeated results has a limit.
    """

    def __init__(self, ctx: RequestContext, request: DescribeConfigsRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._left = MAX_REPEATED_BYTES
        self._seen: dict[tuple[int, str], list[DescribeConfigsResourceResult]] = {}
        self._topics: dict[tuple[tuple[str, str], ...], list[DescribeConfigsResourceResult]] = {}

    def of(self, resource: DescribeConfigsResource, wanted: Mapping[str, int]) -> list[DescribeConfigsResourceResult]:
        """Return a resource's configs, in the order of the requested keys if any are requested. Raises ApiError."""
        key = (resource.resource_type, resource.resource_name)
        entries = self._seen.get(key)
        known = entries is not None
        if entries is None:
            entries = self._seen[key] = self._describe(resource)
        chosen = entries
        if wanted:
            chosen = sorted((each for each in entries if each.name in wanted), key=lambda each: wanted[each.name])
        if known:
            if self._left >= 0:
                self._left -= sum(_size(entry) for entry in chosen)
            if self._left < 0:
                raise ApiError(ErrorCode.INVALID_REQUEST, "The request names this resource too often.")
        return chosen

    def _describe(self, resource: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        if resource.resource_type != TOPIC:
            return self._shown(_entries(self._ctx, resource))
        configs = _topic_configs(self._ctx, resource.resource_name)
        shown = self._topics.get(key := tuple(configs.items()))
        if shown is None:
            shown = self._topics[key] = self._shown(describe_topic(self._ctx.services.config, configs))
        return shown

    def _shown(self, entries: Iterable[Described]) -> list[DescribeConfigsResourceResult]:
        return [_entry(self._request, entry) for entry in entries]


def _size(entry: DescribeConfigsResourceResult) -> int:
    """Return the approximate number of bytes that a config adds to a response."""
    synonyms = sum(len(each.name) + len(each.value or "") + 8 for each in entry.synonyms)
    return len(entry.name) + len(entry.value or "") + len(entry.documentation or "") + synonyms + 12


def _topic_configs(ctx: RequestContext, name: str) -> Mapping[str, str]:
    check_topic_name(name)
    topic = ctx.services.controller.state.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
    return topic.configs


def check_keeps_groups(ctx: RequestContext) -> None:
    """Raise ApiError in a cluster without group.version: its Java brokers (version 3.9) have no group configs."""
    if ctx.services.cluster is not None and not ctx.services.controller.state.features.get(GROUP_VERSION):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {GROUP}")


def _entries(ctx: RequestContext, resource: DescribeConfigsResource) -> list[Described]:
    config, state, name = ctx.services.config, ctx.services.controller.state, resource.resource_name
    if resource.resource_type == GROUP:
        check_keeps_groups(ctx)
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return describe_group(config, state.group_configs.get(name, {}))
    if resource.resource_type == CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        if ctx.services.cluster is not None:
            return []
        return describe_client_metrics(state.client_metrics_configs.get(name, {}))
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


@handles(ListConfigResourcesRequest, ListConfigResourcesResponse, "0-1")
async def list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Return the names of resources by type. v0 lists only client metrics, which a cluster does not store."""
    supported = {CLIENT_METRICS} if ctx.version == 0 else {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
    wanted = (await distinct(request.resource_types)).keys() or supported
    if not wanted <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    state = ctx.services.controller.state
    brokers = [str(node_id) for node_id in state.brokers]
    names: dict[int, Iterable[str]] = {
        GROUP: state.group_configs,
        CLIENT_METRICS: state.client_metrics_configs,
        BROKER_LOGGER: brokers,
        BROKER: brokers,
        TOPIC: state.topics,
    }
    resources = []
    for kind, held in names.items():
        for name in held if kind in wanted else ():
            resources.append(ConfigResource(name, kind))
            await turn
    return ListConfigResourcesResponse(config_resources=resources)

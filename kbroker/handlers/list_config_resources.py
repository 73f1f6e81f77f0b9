"""ListConfigResources (key 74), versions 0-1: names of resources that have configs (KIP-714, KIP-1142)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.handlers.groups import distinct
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


@handles(ListConfigResourcesRequest, ListConfigResourcesResponse, "0-1")
async def list_config_resources(
    ctx: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List names by type; v0 has client metrics only, of which a cluster stores none."""
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

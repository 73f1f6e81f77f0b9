"""ListConfigResources (key 74), versions 0-1: names of resources that have configs (KIP-714, KIP-1142)."""

from __future__ import annotations

from kbroker.handlers.describe_configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


@handles(ListConfigResourcesRequest, ListConfigResourcesResponse, "0-1")
def list_config_resources(ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List by type; v0 knows client metrics only, of which this broker keeps none."""
    supported = {CLIENT_METRICS} if ctx.version == 0 else {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP}
    wanted = set(request.resource_types) or supported
    if not wanted <= supported:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    state = ctx.services.controller.state
    brokers = [str(node_id) for node_id in state.brokers]
    names = {GROUP: list(state.group_configs), BROKER_LOGGER: brokers, BROKER: brokers, TOPIC: list(state.topics)}
    return ListConfigResourcesResponse(
        config_resources=[ConfigResource(name, kind) for kind, held in names.items() if kind in wanted for name in held]
    )

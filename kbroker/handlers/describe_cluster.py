"""DescribeCluster (key 60), versions 0-2: the cluster's id, controller and brokers (KIP-700)."""

from __future__ import annotations

from kbroker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2


@handles(DescribeClusterRequest, DescribeClusterResponse, "0-2")
def describe_cluster(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Answer for brokers; an endpoint type of controllers is asked of the wrong place (KIP-919)."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            if known
            else f"Unsupported endpoint type {request.endpoint_type}"
        )
        return DescribeClusterResponse(
            error_code=code, error_message=text, cluster_authorized_operations=NOT_ASKED, controller_id=-1
        )
    state = ctx.services.controller.state
    return DescribeClusterResponse(
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        brokers=[DescribeClusterBroker(b.node_id, b.host, b.port, b.rack) for b in state.reached_by(ctx.listener)],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )

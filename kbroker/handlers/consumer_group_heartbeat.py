"""ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: one request joins, keeps, acknowledges and leaves (KIP-848); the answer carries an assignment only where it
changed or the member asks for all. With "consumer" not among group.coordinator.rebalance.protocols, or with the feature
group.version at 0, it is UNSUPPORTED_VERSION, by which clients tell.
Version notes: v1 has patterns and member ids made by clients (KIP-1082).
"""

from __future__ import annotations

from kbroker.controller.features import GROUP_VERSION
from kbroker.group_coordinator.consumer.regexes import MaySee, everything
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

FEW_TOPICS = 100


@handles(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, "0-1")
def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest, *, may_see: MaySee = everything
) -> Reply[ConsumerGroupHeartbeatResponse]:
    """Keep a member in its consumer group; its pattern stands for topics that it `may_see`."""
    groups = ctx.services.groups
    if not groups.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    names = request.subscribed_topic_names
    if names is not None and len(names) > FEW_TOPICS:
        return groups.long_consumer_group_heartbeat(
            request,
            version=ctx.version,
            client_id=ctx.client_id or "",
            client_host=ctx.client_host,
            may_see=may_see,
        )
    return groups.consumer_group_heartbeat(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host, may_see=may_see
    )

"""The APIs of consumer groups (KIP-848).

ConsumerGroupHeartbeat (key 68), versions 0-1.

Behaviour: one request joins, keeps, acknowledges and leaves (KIP-848); the response has an assignment only if it
changed or if the member asks for all. If "consumer" is missing from group.coordinator.rebalance.protocols, or the
feature group.version is 0, the error is UNSUPPORTED_VERSION, by which clients recognize it.
Version notes: v1 has patterns and member ids made by clients (KIP-1082).

ConsumerGroupDescribe (key 69), versions 0-1.

Behaviour: state, epochs, members and assignments of consumer groups (KIP-848); any other group is GROUP_ID_NOT_FOUND.
A group that is named again is described again, within a limit (groups.py).
Version notes: v1 has the protocol of each member.
"""

from __future__ import annotations

from kbroker.controller.features import GROUP_VERSION
from kbroker.group_coordinator.consumer.regexes import MaySee, everything
from kbroker.handlers.groups import ALL_OPERATIONS, REFUSAL, as_often, distinct, paired
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)


@handles(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, "0-1")
def consumer_group_heartbeat(
    ctx: RequestContext, request: ConsumerGroupHeartbeatRequest, *, may_see: MaySee = everything
) -> Reply[ConsumerGroupHeartbeatResponse]:
    """Keep a member in its consumer group; its pattern matches only topics that it `may_see`."""
    groups = ctx.services.groups
    if not groups.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return groups.consumer_group_heartbeat(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host, may_see=may_see
    )


@handles(
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    "0-1",
    mirrored(ConsumerGroupDescribeResponse, "group_ids", error_message=None),
)
async def consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe consumer groups."""
    coordinator = ctx.services.groups
    if not coordinator.config.consumer_enabled or ctx.services.controller.state.features.get(GROUP_VERSION, 0) < 1:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    version = ctx.version
    names = await distinct(request.group_ids)
    groups = await coordinator.describe_consumer_groups(names)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            await turn
    if len(names) < len(request.group_ids):
        groups = await as_often(
            request.group_ids,
            await paired(names, groups),
            lambda group: len(encode(ConsumerGroupDescribeResponse(groups=[group]), version)),
            lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return ConsumerGroupDescribeResponse(groups=groups)

"""The APIs of members of classic groups.

JoinGroup (key 11), versions 0-9.

Behaviour: parked until the group's next generation begins. v1 rebalance timeout, v4 MEMBER_ID_REQUIRED (KIP-394),
v5 static members (KIP-345), v9 skip_assignment.
Version notes: v7 made the protocol's name nullable; older clients receive an empty name.

SyncGroup (key 14), versions 0-5.

Behaviour: the leader sends the assignment, and each member receives its own part once the assignment is in the log.
Version notes: since v5 the protocol's type and name are not optional.

Heartbeat (key 12), versions 0-4.

Behaviour: keeps a member's session, and notifies the member when it must join again (REBALANCE_IN_PROGRESS).

LeaveGroup (key 13), versions 0-5.

Behaviour: since v3 a list of members with an error each, and no error of the whole request. An entry with an instance
id but no member id is an administrator's removal. v5 adds reasons, which are logged.
Version notes: before v3 the error of the only member is the error of the response.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

NULLABLE_NAME_SINCE = 7
PROTOCOL_REQUIRED_SINCE = 5
LIST_SINCE = 3


@handles(JoinGroupRequest, JoinGroupResponse, "0-9")
async def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Add a member to the next generation of its group."""
    absent = None if ctx.version >= NULLABLE_NAME_SINCE else ""
    answer = ctx.services.groups.join_group(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host
    )
    response = await awaited(answer)
    response.protocol_name = response.protocol_name or absent
    return response


@handles(SyncGroupRequest, SyncGroupResponse, "0-5")
async def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Return a member's assignment."""
    if ctx.version >= PROTOCOL_REQUIRED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await ctx.services.groups.sync_group(request)


@handles(HeartbeatRequest, HeartbeatResponse, "0-4")
def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Keep a session alive."""
    return ctx.services.groups.heartbeat(request)


@handles(LeaveGroupRequest, LeaveGroupResponse, "0-5")
async def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from their group."""
    response = await ctx.services.groups.leave_group(request, version=ctx.version)
    if ctx.version < LIST_SINCE and not response.error_code and response.members:
        response.error_code = response.members[0].error_code
    return response

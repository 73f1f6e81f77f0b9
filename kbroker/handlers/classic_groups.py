"""The APIs of members of classic groups.

JoinGroup (key 11), versions 0-9.

Behaviour: parked until the group's next generation begins. v1 rebalance timeout, v4 MEMBER_ID_REQUIRED (KIP-394),
v5 static members (KIP-345), v9 skip_assignment.
Version notes: v7 made the protocol's name nullable; older clients are sent an empty one.

SyncGroup (key 14), versions 0-5.

Behaviour: the leader hands in the assignment, everybody receives their own once it is in the log.
Version notes: since v5 the protocol's type and name are not optional.

Heartbeat (key 12), versions 0-4.

Behaviour: keeps a member's session, and is how a member learns that it must join again (REBALANCE_IN_PROGRESS).

LeaveGroup (key 13), versions 0-5.

Behaviour: since v3 a list of members with an error each, and none for the request as a whole; one without a member id
but with an instance id is an administrator's removal. v5 adds reasons, which are logged.
Version notes: before v3 the one member's error is the answer's.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.coordination.then import later, then
from kbroker.divided import Divided
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.classic_groups import (
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
FEW_ASSIGNMENTS = 1_000
LIST_SINCE = 3


@handles(JoinGroupRequest, JoinGroupResponse, "0-9")
def join_group(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    """Let a member into the next generation of its group."""
    absent = None if ctx.version >= NULLABLE_NAME_SINCE else ""

    def finish(response: JoinGroupResponse) -> JoinGroupResponse:
        response.protocol_name = response.protocol_name or absent
        return response

    answer = ctx.services.groups.join_group(
        request, version=ctx.version, client_id=ctx.client_id or "", client_host=ctx.client_host
    )
    return then(answer, finish)


@handles(SyncGroupRequest, SyncGroupResponse, "0-5")
def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> Reply[SyncGroupResponse]:
    """Hand a member its assignment."""
    if ctx.version >= PROTOCOL_REQUIRED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(request.assignments) > FEW_ASSIGNMENTS:
        return ctx.services.groups.sync_long_group(request)
    return ctx.services.groups.sync_group(request)


@handles(HeartbeatRequest, HeartbeatResponse, "0-4")
def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Keep a session alive."""
    return ctx.services.groups.heartbeat(request)


@handles(LeaveGroupRequest, LeaveGroupResponse, "0-5")
def leave_group(ctx: RequestContext, request: LeaveGroupRequest) -> Reply[LeaveGroupResponse]:
    """Remove members from their group."""
    answer = ctx.services.groups.leave_group(request, version=ctx.version)
    return answer if ctx.version >= LIST_SINCE else _leave_one(answer)


def _leave_one(
    leaving: Divided[LeaveGroupResponse | Awaitable[Divided[LeaveGroupResponse]]],
) -> Divided[LeaveGroupResponse | Awaitable[Divided[LeaveGroupResponse]]]:
    answer = yield from leaving
    if isinstance(answer, LeaveGroupResponse):
        return _of_one(answer)
    return later(answer, _spread)


def _spread(work: Divided[LeaveGroupResponse]) -> Divided[LeaveGroupResponse]:
    return _of_one((yield from work))


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    if not response.error_code and response.members:
        response.error_code = response.members[0].error_code
    return response

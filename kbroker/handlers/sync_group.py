"""SyncGroup (key 14), versions 0-5.

Behaviour: the leader hands in the assignment, everybody receives their own once it is in the log.
Version notes: since v5 the protocol's type and name are not optional.
"""

from __future__ import annotations

from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.classic_groups import SyncGroupRequest, SyncGroupResponse

PROTOCOL_REQUIRED_SINCE = 5
FEW_ASSIGNMENTS = 1_000


@handles(SyncGroupRequest, SyncGroupResponse, "0-5")
def sync_group(ctx: RequestContext, request: SyncGroupRequest) -> Reply[SyncGroupResponse]:
    """Hand a member its assignment."""
    if ctx.version >= PROTOCOL_REQUIRED_SINCE and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if len(request.assignments) > FEW_ASSIGNMENTS:
        return ctx.services.groups.sync_long_group(request)
    return ctx.services.groups.sync_group(request)

"""JoinGroup (key 11), versions 0-9.

Behaviour: parked until the group's next generation begins. v1 rebalance timeout, v4 MEMBER_ID_REQUIRED (KIP-394),
v5 static members (KIP-345), v9 skip_assignment.
Version notes: v7 made the protocol's name nullable; older clients are sent an empty one.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.classic_groups import JoinGroupRequest, JoinGroupResponse

NULLABLE_NAME_SINCE = 7


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

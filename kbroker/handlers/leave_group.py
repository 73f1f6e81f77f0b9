"""LeaveGroup (key 13), versions 0-5.

Behaviour: since v3 a list of members with an error each, and none for the request as a whole; one without a member id
but with an instance id is an administrator's removal. v5 adds reasons, which are logged.
Version notes: before v3 the one member's error is the answer's.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.coordination.then import later
from kbroker.divided import Divided
from kbroker.handlers.registry import Reply, RequestContext, handles
from kbroker.protocol.messages.classic_groups import LeaveGroupRequest, LeaveGroupResponse

LIST_SINCE = 3


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

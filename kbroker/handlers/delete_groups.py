"""DeleteGroups (key 42), versions 0-2.

Behaviour: deletes groups without members, with their offsets; NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def _failed(request: DeleteGroupsRequest, code: int, _message: str | None) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group, error_code=code) for group in dict.fromkeys(request.groups_names)]
    )


@handles(DeleteGroupsRequest, DeleteGroupsResponse, "0-2", _failed)
def delete_groups(
    ctx: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse | Awaitable[DeleteGroupsResponse]:
    """Delete groups."""
    return ctx.services.groups.delete_groups(request.groups_names)

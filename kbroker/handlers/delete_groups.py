"""DeleteGroups (key 42), versions 0-2.

Behaviour: deletes groups without members, with their offsets; NON_EMPTY_GROUP and GROUP_ID_NOT_FOUND for the others.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided, each
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import distinct
from kbroker.protocol.messages.groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def _failed(request: DeleteGroupsRequest, code: int, _message: str | None) -> Divided[DeleteGroupsResponse]:
    names = yield from distinct(request.groups_names)
    failed = each(names, lambda group_id: DeletableGroupResult(group_id=group_id, error_code=code))
    return DeleteGroupsResponse(results=(yield from failed))


@handles(DeleteGroupsRequest, DeleteGroupsResponse, "0-2", _failed)
def delete_groups(
    ctx: RequestContext, request: DeleteGroupsRequest
) -> Divided[DeleteGroupsResponse | Awaitable[DeleteGroupsResponse]]:
    """Delete groups."""
    return ctx.services.groups.delete_groups(request.groups_names)

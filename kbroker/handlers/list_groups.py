"""ListGroups (key 16), versions 0-5.

Behaviour: the groups that this broker coordinates; v4 filters by state (KIP-518), v5 by type (KIP-848).
"""

from __future__ import annotations

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse


@handles(ListGroupsRequest, ListGroupsResponse, "0-5")
def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> Divided[ListGroupsResponse]:
    """List groups."""
    return ctx.services.groups.list_groups(request)

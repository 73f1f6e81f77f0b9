"""DescribeGroups (key 15), versions 0-6.

Behaviour: state, protocol and members of classic groups; metadata and protocol only while a group is Stable.
A group that is named again is answered again, within a bound (repeated_groups.py).
Version notes: v3 authorized operations; a group that does not exist is Dead, and an error only since v6.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import REFUSAL, as_often
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS by AclOperation's codes: what a group knows."""


def _failed(request: DescribeGroupsRequest, code: int, _message: str | None) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id=group, error_code=code) for group in request.groups])


@handles(DescribeGroupsRequest, DescribeGroupsResponse, "0-6", _failed)
def describe_groups(ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups."""
    version = ctx.version
    names = list(dict.fromkeys(request.groups))
    response = ctx.services.groups.describe_groups(names, version=version)
    if request.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
    response.groups = as_often(
        request.groups,
        dict(zip(names, response.groups, strict=True)),
        lambda group: len(encode(DescribeGroupsResponse(groups=[group]), version)),
        lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
    )
    return response

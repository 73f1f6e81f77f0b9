"""DescribeGroups (key 15), versions 0-6.

Behaviour: state, protocol and members of classic groups; metadata and protocol only while a group is Stable.
A group that is named again is answered again, within a bound (repeated_groups.py).
Version notes: v3 authorized operations; a group that does not exist is Dead, and an error only since v6.
"""

from __future__ import annotations

from kbroker.divided import Divided, each
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import REFUSAL, as_often, distinct, paired
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS by AclOperation's codes: what a group knows."""


def _failed(request: DescribeGroupsRequest, code: int, _message: str | None) -> Divided[DescribeGroupsResponse]:
    failed = each(request.groups, lambda group_id: DescribedGroup(group_id=group_id, error_code=code))
    return DescribeGroupsResponse(groups=(yield from failed))


@handles(DescribeGroupsRequest, DescribeGroupsResponse, "0-6", _failed)
def describe_groups(ctx: RequestContext, request: DescribeGroupsRequest) -> Divided[DescribeGroupsResponse]:
    """Describe groups."""
    version = ctx.version
    names = yield from distinct(request.groups)
    groups = yield from ctx.services.groups.describe_groups(names, version=version)
    if request.include_authorized_operations:
        for group in groups:
            if not group.error_code:
                group.authorized_operations = ALL_OPERATIONS
            yield
    if len(names) < len(request.groups):
        groups = yield from as_often(
            request.groups,
            (yield from paired(names, groups)),
            lambda group: len(encode(DescribeGroupsResponse(groups=[group]), version)),
            lambda name: DescribedGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST, error_message=REFUSAL),
        )
    return DescribeGroupsResponse(groups=groups)

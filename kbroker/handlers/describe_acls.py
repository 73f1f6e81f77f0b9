"""DescribeAcls (key 29), versions 1-3: the access control lists that a filter means."""

from __future__ import annotations

from kbroker.divided import Divided
from kbroker.handlers.acl_requests import check_enabled, check_filter, filter_of
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


@handles(DescribeAclsRequest, DescribeAclsResponse, "1-3")
def describe_acls(ctx: RequestContext, request: DescribeAclsRequest) -> Divided[DescribeAclsResponse]:
    """Describe what is found; codes that nobody knows find nothing."""
    check_filter(request)
    check_enabled(ctx, "No Authorizer is configured on the broker")
    answer = DescribeAclsResponse()
    try:
        wanted = filter_of(request)
    except ApiError:
        return answer
    last = None
    for pattern, entry in wanted.found(ctx.services.controller.state.acls):
        if entry is not None:
            if pattern is not last:
                last = pattern
                answer.resources.append(
                    DescribeAclsResource(pattern.resource_type, pattern.name, pattern.pattern_type, [])
                )
            described = AclDescription(entry.principal, entry.host, entry.operation, entry.permission)
            answer.resources[-1].acls.append(described)
        yield
    return answer

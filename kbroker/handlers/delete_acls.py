"""DeleteAcls (key 31), versions 1-3: remove the access control lists that filters mean, and tell which they were."""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided, each
from kbroker.handlers.acl_requests import MAX_ACLS, check_enabled, check_filter, filter_of
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from kbroker.security.authorizer.acls import Acl, AclFilter


def _on_error(request: DeleteAclsRequest, code: int, message: str | None) -> Divided[DeleteAclsResponse]:
    return DeleteAclsResponse(filter_results=(yield from each(request.filters, lambda _: _failed(code, message))))


def _failed(code: int, message: str | None) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


@handles(DeleteAclsRequest, DeleteAclsResponse, "1-3", _on_error)
def delete_acls(
    ctx: RequestContext, request: DeleteAclsRequest
) -> Divided[DeleteAclsResponse | Awaitable[DeleteAclsResponse]]:
    """Remove what each filter means; what two mean is told for both."""
    for asked in request.filters:
        check_filter(asked)
        yield
    check_enabled(ctx, "No Authorizer is configured.")
    if len(request.filters) > MAX_ACLS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    wanted: list[AclFilter | ApiError] = []
    for asked in request.filters:
        try:
            wanted.append(filter_of(asked))
        except ApiError as error:
            wanted.append(error)
        yield
    found = yield from ctx.services.controller.delete_acls([f for f in wanted if isinstance(f, AclFilter)])
    answers = iter(found)
    results = []
    for asked_for in wanted:
        outcome = next(answers) if isinstance(asked_for, AclFilter) else asked_for
        if isinstance(outcome, ApiError):
            results.append(_failed(outcome.code, outcome.message))
        else:
            matching = yield from each(outcome, _matching)
            results.append(DeleteAclsFilterResult(error_message=None, matching_acls=matching))
        yield
    return in_effect(ctx, DeleteAclsResponse(filter_results=results))


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    pattern, entry = acl
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=pattern.resource_type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )

"""CreateAcls (key 30), versions 1-3: add access control lists, each for itself; one that exists is no error."""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided, each
from kbroker.handlers.acl_requests import MAX_ACLS, check_enabled, check_known
from kbroker.handlers.in_effect import in_effect
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from kbroker.security.authorizer.acls import (
    CLUSTER_NAME,
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    code,
    frozen,
)


def _on_error(request: CreateAclsRequest, number: int, message: str | None) -> Divided[CreateAclsResponse]:
    return CreateAclsResponse(results=(yield from each(request.creations, lambda _: _result(number, message))))


def _result(number: int, message: str | None) -> AclCreationResult:
    return AclCreationResult(error_code=number, error_message=message)


@handles(CreateAclsRequest, CreateAclsResponse, "1-3", _on_error)
def create_acls(
    ctx: RequestContext, request: CreateAclsRequest
) -> Divided[CreateAclsResponse | Awaitable[CreateAclsResponse]]:
    """Check each, and add those that are valid."""
    for asked in request.creations:
        check_known(asked.resource_type, asked.resource_pattern_type, asked.operation, asked.permission_type)
        yield
    check_enabled(ctx, "No Authorizer is configured.")
    if len(request.creations) > MAX_ACLS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    wanted: list[Acl | ApiError] = []
    more: dict[Pattern, set[Entry]] = {}
    for asked in request.creations:
        try:
            acl = _acl(asked)
        except ApiError as error:
            wanted.append(error)
        else:
            wanted.append(acl)
            more.setdefault(acl.pattern, set()).add(acl.entry)
        yield
    refused = yield from ctx.services.controller.create_acls((yield from frozen(more)))
    results = []
    for outcome in wanted:
        fault = refused.get(outcome.pattern) if isinstance(outcome, Acl) else outcome
        results.append(AclCreationResult() if fault is None else _result(fault.code, fault.message))
        yield
    return in_effect(ctx, CreateAclsResponse(results=results))


def _acl(asked: AclCreation) -> Acl:
    """Return the ACL that is asked for. Raises ApiError in the words of Kafka's AclApis and AclControlManager."""
    kind, pattern = code(ResourceType, asked.resource_type), code(PatternType, asked.resource_pattern_type)
    operation, permission = code(Operation, asked.operation), code(Permission, asked.permission_type)
    fault = None
    if kind is ResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not asked.resource_name:
        fault = "Invalid empty resource name"
    elif kind <= ResourceType.ANY:
        fault = f"Invalid resourceType {kind.name}"
    elif pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        fault = f"Invalid patternType {pattern.name}"
    elif operation <= Operation.ANY:
        fault = f"Invalid operation {operation.name}"
    elif permission <= Permission.ANY:
        fault = f"Invalid permissionType {permission.name}"
    elif ":" not in asked.principal:
        fault = (
            f"Could not parse principal from `{asked.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if fault is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, fault)
    entry = Entry(asked.principal, asked.host, operation, permission)
    return Acl(Pattern(kind, asked.resource_name, pattern), entry)

"""The APIs of access control lists.

Owns the checks and filters that these requests share, and the error if there is no authorizer. Never decides whether a
client is authorized: the package `authorized` decides that.

DescribeAcls (key 29), versions 1-3: return the access control lists that match a filter.

CreateAcls (key 30), versions 1-3: add access control lists, each independently. An existing ACL is not an error.

DeleteAcls (key 31), versions 1-3: remove the access control lists that match filters, and return them.
"""

from __future__ import annotations

from typing import Final, Protocol

from kbroker.controller.features import METADATA_VERSION, RANGES_OF_HOSTS_SINCE, STREAMS_VERSION
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import CloseConnection, RequestContext, handles
from kbroker.long_work import each, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.access import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from kbroker.security.authorizer.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    code,
    frozen,
)
from kbroker.security.authorizer.hosts import is_range, parse_range

MAX_ACLS: Final = 10_000
"""The maximum number of ACLs, and of filters, in one request (QuorumController's MAX_RECORDS_PER_USER_OP)."""


class Filter(Protocol):
    """The fields of a request that select ACLs."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def check_enabled(ctx: RequestContext, text: str) -> None:
    """Raise SECURITY_DISABLED if no authorizer is configured, because nothing would enforce an ACL."""
    if ctx.services.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, text)


def check_known(*codes: int) -> None:
    """Raise CloseConnection if a code is 0 (UNKNOWN), which Kafka cannot parse."""
    if 0 in codes:
        raise CloseConnection("a request about ACLs has the code 0 (UNKNOWN)")


def check_filter(wanted: Filter) -> None:
    """Apply `check_known` to a filter."""
    check_known(
        wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type
    )  # fmt: skip


def filter_of(wanted: Filter) -> AclFilter:
    """Return the filter of a request. Raises ApiError for unknown codes."""
    pattern = code(PatternType, wanted.pattern_type_filter)
    resource = code(ResourceType, wanted.resource_type_filter)
    operation, permission = code(Operation, wanted.operation), code(Permission, wanted.permission_type)
    if not pattern or not resource:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
    if not operation or not permission:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")
    return AclFilter(
        resource,
        wanted.resource_name_filter,
        pattern,
        wanted.principal_filter,
        wanted.host_filter,
        operation,
        permission,
    )


@handles(DescribeAclsRequest, DescribeAclsResponse, "1-3")
async def describe_acls(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Return the matching ACLs. A filter with an unknown code matches nothing."""
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
        await turn
    return answer


def _result(number: int, message: str | None) -> AclCreationResult:
    return AclCreationResult(error_code=number, error_message=message)


@handles(CreateAclsRequest, CreateAclsResponse, "1-3", mirrored(CreateAclsResponse, "creations"))
async def create_acls(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Check each ACL, and add the valid ACLs."""
    for asked in request.creations:
        check_known(asked.resource_type, asked.resource_pattern_type, asked.operation, asked.permission_type)
        await turn
    check_enabled(ctx, "No Authorizer is configured.")
    if len(request.creations) > MAX_ACLS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    wanted: list[Acl | ApiError] = []
    more: dict[Pattern, set[Entry]] = {}
    for asked in request.creations:
        try:
            acl = _acl(asked)
            _check_host(ctx, acl.entry.host)
        except ApiError as error:
            wanted.append(error)
        else:
            wanted.append(acl)
            more.setdefault(acl.pattern, set()).add(acl.entry)
        await turn
    refused = await ctx.services.controller.create_acls(await frozen(more))
    results = []
    for outcome in wanted:
        fault = refused.get(outcome.pattern) if isinstance(outcome, Acl) else outcome
        results.append(AclCreationResult() if fault is None else _result(fault.code, fault.message))
        await turn
    return await ctx.services.in_effect(CreateAclsResponse(results=results))


def _acl(asked: AclCreation) -> Acl:
    """Return the requested ACL. Raises ApiError with the messages of Kafka's AclApis and AclControlManager."""
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


def _check_host(ctx: RequestContext, host: str) -> None:
    """Raise ApiError for an empty host, and for a range of addresses that not every broker would understand."""
    if not host:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Host pattern cannot be null or empty")
    if not is_range(host):
        return
    levels = ctx.services.controller.state.features
    if ctx.services.cluster is not None and levels.get(STREAMS_VERSION, 0) < 1:
        # Older brokers read the range as the name of a host. They cannot run in a cluster with this feature.
        text = "CIDR-based ACL host patterns require streams.version 1 in this cluster."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    if ctx.services.cluster is None and levels.get(METADATA_VERSION, 0) < RANGES_OF_HOSTS_SINCE:
        text = "CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher."
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, text)
    try:
        parse_range(host)
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Invalid CIDR notation '{host}': {error}") from None


def _failed(code: int, message: str | None) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=code, error_message=message)


@handles(DeleteAclsRequest, DeleteAclsResponse, "1-3", mirrored(DeleteAclsResponse, "filters"))
async def delete_acls(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Remove the ACLs that match each filter; an ACL that matches two filters is returned for both."""
    for asked in request.filters:
        check_filter(asked)
        await turn
    check_enabled(ctx, "No Authorizer is configured.")
    if len(request.filters) > MAX_ACLS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    wanted: list[AclFilter | ApiError] = []
    for asked in request.filters:
        try:
            wanted.append(filter_of(asked))
        except ApiError as error:
            wanted.append(error)
        await turn
    found = await ctx.services.controller.delete_acls([f for f in wanted if isinstance(f, AclFilter)])
    answers = iter(found)
    results = []
    for asked_for in wanted:
        outcome = next(answers) if isinstance(asked_for, AclFilter) else asked_for
        if isinstance(outcome, ApiError):
            results.append(_failed(outcome.code, outcome.message))
        else:
            matching = await each(outcome, _matching)
            results.append(DeleteAclsFilterResult(error_message=None, matching_acls=matching))
        await turn
    return await ctx.services.in_effect(DeleteAclsResponse(filter_results=results))


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

"""Access control lists: listing, adding and removing them. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.own_request import ask_any
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kbroker.security.authorizer.acls import (
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    code,
)

_T = TypeVar("_T")


def add_acls(admin: Any, acls: Sequence[Acl]) -> list[tuple[Acl, str | None]]:
    """Add ACLs; return each with the reason why it was not added, or None. Raises AdminError."""
    creations = [
        AclCreation(p.resource_type, p.name, p.pattern_type, e.principal, e.host, e.operation, e.permission)
        for p, e in acls
    ]
    answer = _answered(ask_any(admin, CreateAclsRequest(creations=creations), CreateAclsResponse))
    told = []
    for acl, result in zip(acls, answer.results, strict=True):
        error = code_error(result.error_code)
        told.append((acl, None if error is None else error_text(error, result.error_message)))
    return told


def described_acls(admin: Any, wanted: AclFilter) -> Iterator[Acl]:
    """Return the ACLs that a filter matches; raises AdminError."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        operation=wanted.operation,
        permission_type=wanted.permission,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
    )
    answer = _answered(ask_any(admin, request, DescribeAclsResponse))
    error = code_error(answer.error_code)
    if error is not None:
        raise AdminError(error_text(error, answer.error_message))
    for resource in answer.resources:
        kind, pattern_type = code(ResourceType, resource.resource_type), code(PatternType, resource.pattern_type)
        pattern = Pattern(kind, resource.resource_name, pattern_type)
        for acl in resource.acls:
            operation, permission = code(Operation, acl.operation), code(Permission, acl.permission_type)
            yield Acl(pattern, Entry(acl.principal, acl.host, operation, permission))


def remove_acls(admin: Any, filters: Sequence[AclFilter]) -> tuple[list[Acl], list[str]]:
    """Remove the ACLs that filters match; return those, and the errors of failed removals. Raises AdminError."""
    asked = [
        DeleteAclsFilter(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.name,
            pattern_type_filter=each.pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission,
        )
        for each in filters
    ]
    answer = _answered(ask_any(admin, DeleteAclsRequest(filters=asked), DeleteAclsResponse))
    removed: list[Acl] = []
    failures: list[str] = []
    for result in answer.filter_results:
        for matching in result.matching_acls:
            pattern_type = code(PatternType, matching.pattern_type)
            pattern = Pattern(code(ResourceType, matching.resource_type), matching.resource_name, pattern_type)
            operation, permission = code(Operation, matching.operation), code(Permission, matching.permission_type)
            removed.append(Acl(pattern, Entry(matching.principal, matching.host, operation, permission)))
        error = code_error(result.error_code)
        if error is not None:
            failures.append(f"cannot remove: {error_text(error, result.error_message)}")
    return removed, list(dict.fromkeys(failures))


def _answered(answer: _T | None) -> _T:
    if answer is None:
        raise AdminError("this broker knows no ACLs")
    return answer

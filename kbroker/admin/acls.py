"""Access control lists: listing, adding and removing them. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.own_request import ask_any
from kbroker.protocol.messages.access import (
    AclCreation,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
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
    creations = [AclCreation(*p, e.principal, e.host, e.operation, e.permission) for p, e in acls]
    answer = _answered(ask_any(admin, CreateAclsRequest(creations=creations), CreateAclsResponse))
    results = []
    for acl, result in zip(acls, answer.results, strict=True):
        error = code_error(result.error_code)
        results.append((acl, None if error is None else error_text(error, result.error_message)))
    return results


def described_acls(admin: Any, wanted: AclFilter) -> Iterator[Acl]:
    """Return the ACLs that match a filter. Raises AdminError."""
    answer = _answered(ask_any(admin, DescribeAclsRequest(*astuple(wanted)), DescribeAclsResponse))
    error = code_error(answer.error_code)
    if error is not None:
        raise AdminError(error_text(error, answer.error_message))
    for resource in answer.resources:
        for acl in resource.acls:
            yield _acl(resource, acl)


def _acl(resource: DescribeAclsResource | DeleteAclsMatchingAcl, acl: AclDescription | DeleteAclsMatchingAcl) -> Acl:
    kind, pattern_type = code(ResourceType, resource.resource_type), code(PatternType, resource.pattern_type)
    operation, permission = code(Operation, acl.operation), code(Permission, acl.permission_type)
    return Acl(
        Pattern(kind, resource.resource_name, pattern_type), Entry(acl.principal, acl.host, operation, permission)
    )


def remove_acls(admin: Any, filters: Sequence[AclFilter]) -> tuple[list[Acl], list[str]]:
    """Remove the ACLs that match the filters; return the removed ACLs, and the errors of failed removals.

    Raises AdminError.
    """
    requested = [DeleteAclsFilter(*astuple(each)) for each in filters]
    answer = _answered(ask_any(admin, DeleteAclsRequest(filters=requested), DeleteAclsResponse))
    removed: list[Acl] = []
    failures: list[str] = []
    for result in answer.filter_results:
        removed += [_acl(each, each) for each in result.matching_acls]
        error = code_error(result.error_code)
        if error is not None:
            failures.append(f"cannot remove: {error_text(error, result.error_message)}")
    return removed, list(dict.fromkeys(failures))


def _answered(answer: _T | None) -> _T:
    if answer is None:
        raise AdminError("this broker knows no ACLs")
    return answer

"""What the requests about access control lists have in common.

Owns the reading of filters, and what is told where there is no authorizer. Never decides who may ask (authorized/).
"""

from __future__ import annotations

from typing import Final, Protocol

from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.authorizer.acls import AclFilter, Operation, PatternType, Permission, ResourceType, code

MAX_ACLS: Final = 10_000
"""That one request may create (QuorumController's MAX_RECORDS_PER_USER_OP), and filters that one may have."""


class Filter(Protocol):
    """What a request says of the ACLs that it means."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def check_enabled(ctx: RequestContext, text: str) -> None:
    """Raise SECURITY_DISABLED where no authorizer would follow an ACL."""
    if ctx.services.authorizer is None:
        raise ApiError(ErrorCode.SECURITY_DISABLED, text)


def check_known(*codes: int) -> None:
    """End the connection for what Kafka cannot parse: the code 0, which stands for what nobody knows."""
    if 0 in codes:
        raise CloseConnection("a request about ACLs has elements that stand for UNKNOWN")


def check_filter(wanted: Filter) -> None:
    """As `check_known`, of a filter."""
    check_known(
        wanted.resource_type_filter, wanted.pattern_type_filter, wanted.operation, wanted.permission_type
    )  # fmt: skip


def filter_of(wanted: Filter) -> AclFilter:
    """Return which ACLs are meant. Raises ApiError for codes that are not known."""
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

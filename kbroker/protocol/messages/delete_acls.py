"""DeleteAcls (key 31): access control lists are removed, whatever filters mean (KIP-140, KIP-290)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@struct
class DeleteAclsFilter:
    resource_type_filter: i8 = f()
    resource_name_filter: str | None = f(nullable="0+")
    pattern_type_filter: i8 = f("1+", default=3)
    principal_filter: str | None = f(nullable="0+")
    host_filter: str | None = f(nullable="0+")
    operation: i8 = f()
    permission_type: i8 = f()


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsRequest:
    filters: list[DeleteAclsFilter] = f()


@struct
class DeleteAclsMatchingAcl:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()
    pattern_type: i8 = f("1+", default=3)
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class DeleteAclsFilterResult:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = f()


@message(key=31, versions="1-3", flexible="2+")
class DeleteAclsResponse:
    throttle_time_ms: i32 = f()
    filter_results: list[DeleteAclsFilterResult] = f()

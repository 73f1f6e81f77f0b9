"""Access control lists."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct

# DescribeAcls (key 29): return access control lists (KIP-140, KIP-290).


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: i8 = f()
    resource_name_filter: str | None = f(nullable="0+")
    pattern_type_filter: i8 = f("1+", default=3)
    principal_filter: str | None = f(nullable="0+")
    host_filter: str | None = f(nullable="0+")
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class AclDescription:
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@struct
class DescribeAclsResource:
    resource_type: i8 = f()
    resource_name: str = f()
    pattern_type: i8 = f("1+", default=3)
    acls: list[AclDescription] = f()


@message(key=29, versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resources: list[DescribeAclsResource] = f()


# CreateAcls (key 30): add access control lists (KIP-140, KIP-290).


@struct
class AclCreation:
    resource_type: i8 = f()
    resource_name: str = f()
    resource_pattern_type: i8 = f("1+", default=3)
    principal: str = f()
    host: str = f()
    operation: i8 = f()
    permission_type: i8 = f()


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsRequest:
    creations: list[AclCreation] = f()


@struct
class AclCreationResult:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@message(key=30, versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: i32 = f()
    results: list[AclCreationResult] = f()


# DeleteAcls (key 31): remove the access control lists that match filters (KIP-140, KIP-290).


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

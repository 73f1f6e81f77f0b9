"""DescribeAcls (key 29): which access control lists there are (KIP-140, KIP-290)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


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

"""CreateAcls (key 30): access control lists are added (KIP-140, KIP-290)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


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

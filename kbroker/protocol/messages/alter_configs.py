"""AlterConfigs (key 33): replace all configs of a resource (KIP-133)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@struct
class AlterableConfig:
    name: str = f()
    value: str | None = f(nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: i8 = f()
    resource_name: str = f()
    configs: list[AlterableConfig] = f()


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    resources: list[AlterConfigsResource] = f()
    validate_only: bool = f()


@struct
class AlterConfigsResourceResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: i32 = f()
    responses: list[AlterConfigsResourceResponse] = f()

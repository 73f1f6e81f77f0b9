"""IncrementalAlterConfigs (key 44): set, delete, append to and subtract from configs (KIP-339)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@struct
class AlterableConfig:
    name: str = f()
    config_operation: i8 = f()
    value: str | None = f(nullable="0+")


@struct
class AlterConfigsResource:
    resource_type: i8 = f()
    resource_name: str = f()
    configs: list[AlterableConfig] = f()


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: list[AlterConfigsResource] = f()
    validate_only: bool = f()


@struct
class AlterConfigsResourceResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: i32 = f()
    responses: list[AlterConfigsResourceResponse] = f()

"""ListConfigResources (key 74): names of resources that have configs (KIP-714, KIP-1142)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: list[i8] = f("1+")


@struct
class ConfigResource:
    resource_name: str = f()
    resource_type: i8 = f("1+", default=16)


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    config_resources: list[ConfigResource] = f()

"""Configs of topics, brokers and groups."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct

# DescribeConfigs (key 32): configs of topics, brokers and groups, with their sources (KIP-133, KIP-226).


@struct
class DescribeConfigsResource:
    resource_type: i8 = f()
    resource_name: str = f()
    configuration_keys: list[str] | None = f(nullable="0+")


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    resources: list[DescribeConfigsResource] = f()
    include_synonyms: bool = f("1+", default=False)
    include_documentation: bool = f("3+", default=False)


@struct
class DescribeConfigsSynonym:
    name: str = f("1+")
    value: str | None = f("1+", nullable="0+")
    source: i8 = f("1+")


@struct
class DescribeConfigsResourceResult:
    name: str = f()
    value: str | None = f(nullable="0+")
    read_only: bool = f()
    config_source: i8 = f("1+", default=-1)
    is_sensitive: bool = f()
    synonyms: list[DescribeConfigsSynonym] = f("1+")
    config_type: i8 = f("3+")
    documentation: str | None = f("3+", nullable="0+")


@struct
class DescribeConfigsResult:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()
    configs: list[DescribeConfigsResourceResult] = f()


@message(key=32, versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: i32 = f()
    results: list[DescribeConfigsResult] = f()


# AlterConfigs (key 33): replace all configs of a resource (KIP-133).


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


# IncrementalAlterConfigs (key 44): set, delete, append to and subtract from configs (KIP-339).


@struct
class IncrementalConfig:
    name: str = f()
    config_operation: i8 = f()
    value: str | None = f(nullable="0+")


@struct
class IncrementalResource:
    resource_type: i8 = f()
    resource_name: str = f()
    configs: list[IncrementalConfig] = f()


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalResource] = f()
    validate_only: bool = f()


@struct
class IncrementalResourceResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    resource_type: i8 = f()
    resource_name: str = f()


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: i32 = f()
    responses: list[IncrementalResourceResponse] = f()


# ListConfigResources (key 74): names of resources that have configs (KIP-714, KIP-1142).


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

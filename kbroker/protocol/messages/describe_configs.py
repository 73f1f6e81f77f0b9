"""DescribeConfigs (key 32): configs of topics, brokers and groups, with their sources (KIP-133, KIP-226)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


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

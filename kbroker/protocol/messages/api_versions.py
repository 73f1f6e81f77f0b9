"""ApiVersions (key 18).

The APIs and versions of a broker, and its features (KIP-35, KIP-511, KIP-584). The response header is always
version 0.
"""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@message(key=18, versions="0-4", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = f("3+")
    client_software_version: str = f("3+")


@struct
class ApiVersion:
    api_key: i16 = f()
    min_version: i16 = f()
    max_version: i16 = f()


@struct
class SupportedFeatureKey:
    name: str = f("3+")
    min_version: i16 = f("3+")
    max_version: i16 = f("3+")


@struct
class FinalizedFeatureKey:
    name: str = f("3+")
    max_version_level: i16 = f("3+")
    min_version_level: i16 = f("3+")


@message(key=18, versions="0-4", flexible="3+")
class ApiVersionsResponse:
    error_code: i16 = f()
    api_keys: list[ApiVersion] = f()
    throttle_time_ms: i32 = f("1+")
    supported_features: list[SupportedFeatureKey] = f("3+", tag=0)
    finalized_features_epoch: i64 = f("3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = f("3+", tag=2)
    zk_migration_ready: bool = f("3+", tag=3, default=False)

"""UpdateFeatures (key 57): change finalized feature levels (KIP-584, KIP-778)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@struct
class FeatureUpdateKey:
    feature: str = f()
    max_version_level: i16 = f()
    allow_downgrade: bool = f("0")
    upgrade_type: i8 = f("1+", default=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: i32 = f(default=60000)
    feature_updates: list[FeatureUpdateKey] = f()
    validate_only: bool = f("1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    results: list[UpdatableFeatureResult] = f("0-1")

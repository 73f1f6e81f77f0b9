"""The messages of every connection: headers, the versions that a broker serves, and authentication."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct

# The headers before every request and response.
#
# The client id is never compact, so that any broker can read it (RequestHeader.json).


@message(key=-1, versions="1-2", flexible="2+")
class RequestHeader:
    request_api_key: i16 = f()
    request_api_version: i16 = f()
    correlation_id: i32 = f()
    client_id: str | None = f("1+", nullable="1+", flexible="none")


@message(key=-1, versions="0-1", flexible="1+")
class ResponseHeader:
    correlation_id: i32 = f()


# ApiVersions (key 18): the APIs and versions of a broker, and its features (KIP-35, KIP-511, KIP-584). From v5 the
# client may name the broker that it wants to reach (KIP-1242).
#
# The response header is always version 0.


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    client_software_name: str = f("3+")
    client_software_version: str = f("3+")
    cluster_id: str | None = f("5+", nullable="5+", default=None)
    node_id: i32 = f("5+", default=-1)


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


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    error_code: i16 = f()
    api_keys: list[ApiVersion] = f()
    throttle_time_ms: i32 = f("1+")
    supported_features: list[SupportedFeatureKey] = f("3+", tag=0)
    finalized_features_epoch: i64 = f("3+", tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = f("3+", tag=2)
    zk_migration_ready: bool = f("3+", tag=3, default=False)


# SaslHandshake (key 17): choose a SASL mechanism (KIP-43). This message is never flexible.
#
# After version 0, bare tokens follow, each preceded by its size. After version 1, tokens follow in SaslAuthenticate
# (KIP-152).


@message(key=17, versions="0-1")
class SaslHandshakeRequest:
    mechanism: str = f()


@message(key=17, versions="0-1")
class SaslHandshakeResponse:
    error_code: i16 = f()
    mechanisms: list[str] = f()


# SaslAuthenticate (key 36): one token of a SASL mechanism, and the server's response to it (KIP-152, KIP-368).


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = f()


@message(key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    auth_bytes: bytes = f()
    session_lifetime_ms: i64 = f("1+")

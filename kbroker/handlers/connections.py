"""The APIs at the beginning of a connection: ApiVersions, and SASL requests that arrive at the wrong time.

ApiVersions (key 18), versions 0-5: the APIs of this broker, derived from the registry of handlers. Produce is
advertised from version 0 although versions 0-2 are refused, because older versions of librdkafka compress only if
version 0 is advertised (KAFKA-18659). The finalized features are the features in the cluster's state. Before v4, the
response omits a supported feature whose lowest level is 0, because older clients cannot read it (KAFKA-17492). From v5
on a client may name the cluster and the broker that it wants to reach. A broker that receives such a request for
another broker returns REBOOTSTRAP_REQUIRED (KIP-1242).

SaslHandshake (key 17), versions 0-1, and SaslAuthenticate (key 36), versions 0-2. Authentication itself takes place
before any handler (network/sasl_gate.py). A request reaches these handlers only if it arrives too late, too soon after
the last authentication, or on a listener without SASL.
"""

from __future__ import annotations

import re

from kbroker.controller.features import SUPPORTED, SUPPORTED_IN_CLUSTER
from kbroker.handlers.registry import APIS, RequestContext, handles, served
from kbroker.handlers.services import Services
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    SupportedFeatureKey,
)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_LONGEST = 1_000
"""The maximum length in characters of a client software's name and version, which are kept with the connection."""
_PRODUCE, _API_VERSIONS = 0, 18
_FIRST_SOFTWARE_VERSION = 3
_LEVEL_0_SINCE = 4
_FIRST_ASKED_BROKER = 5
_NO_NODE = -1


def _advertised(key: int) -> ApiVersion:
    versions = APIS[key].versions
    return ApiVersion(key, 0 if key == _PRODUCE else versions.low, versions.high)


def _keys(services: Services, *, in_cluster: bool) -> list[int]:
    return sorted(key for key, api in served(in_cluster=in_cluster).items() if api.advertised(services))


@handles(ApiVersionsRequest, ApiVersionsResponse, "0-5")
def api_versions(ctx: RequestContext, request: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """Return all APIs. `request` is None if this broker does not know the request's version (KIP-511)."""
    if request is None:
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_advertised(_API_VERSIONS)])
    if ctx.version >= _FIRST_ASKED_BROKER and (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if ctx.version >= _FIRST_SOFTWARE_VERSION:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        ctx.client_software = (name[:_LONGEST], version[:_LONGEST])
    state = ctx.services.controller.state
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != (
        state.cluster_id,
        ctx.services.node_id,
    ):
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    in_cluster = ctx.services.cluster is not None
    return ApiVersionsResponse(
        api_keys=[_advertised(key) for key in _keys(ctx.services, in_cluster=in_cluster)],
        supported_features=[
            SupportedFeatureKey(name, low, high)
            for name, (low, high) in (SUPPORTED_IN_CLUSTER if in_cluster else SUPPORTED).items()
            if low > 0 or ctx.version >= _LEVEL_0_SINCE
        ],
        finalized_features_epoch=state.features_epoch,
        finalized_features=[
            FinalizedFeatureKey(name, level, level) for name, level in state.features.items() if level > 0
        ],
    )


@handles(SaslHandshakeRequest, SaslHandshakeResponse, "0-1")
def sasl_handshake(_ctx: RequestContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse a handshake outside authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


@handles(SaslAuthenticateRequest, SaslAuthenticateResponse, "0-2")
def sasl_authenticate(_ctx: RequestContext, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse an authentication request outside authentication."""
    text = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)

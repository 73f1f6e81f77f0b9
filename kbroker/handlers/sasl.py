"""SASL requests where authentication is not possible, or no longer.

SaslHandshake (key 17), versions 0-1, and SaslAuthenticate (key 36), versions 0-2. Authentication itself comes before
any handler (network/sasl_gate.py). Requests that arrive here came too late, too soon after the last authentication, or
on a listener without SASL.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.connections import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@handles(SaslHandshakeRequest, SaslHandshakeResponse, "0-1")
def sasl_handshake(_ctx: RequestContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse it."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


@handles(SaslAuthenticateRequest, SaslAuthenticateResponse, "0-2")
def sasl_authenticate(_ctx: RequestContext, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse it."""
    text = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)

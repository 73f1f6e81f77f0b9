"""SaslAuthenticate (key 36), versions 0-2, where nobody has to authenticate (any more); see sasl_handshake.py."""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(SaslAuthenticateRequest, SaslAuthenticateResponse, "0-2")
def sasl_authenticate(_ctx: RequestContext, _request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Refuse it."""
    text = "SaslAuthenticate request received after successful authentication"
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)

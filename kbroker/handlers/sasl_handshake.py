"""SaslHandshake (key 17), versions 0-1, where nobody has to authenticate (any more).

Authentication itself comes before any handler (network/sasl_gate.py); what arrives here came too late, too soon after
the last one, or by a listener without SASL.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.sasl import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, SaslHandshakeResponse, "0-1")
def sasl_handshake(_ctx: RequestContext, _request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Refuse it."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)

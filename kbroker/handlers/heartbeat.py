"""Heartbeat (key 12), versions 0-4.

Behaviour: keeps a member's session, and is how a member learns that it must join again (REBALANCE_IN_PROGRESS).
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.classic_groups import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, HeartbeatResponse, "0-4")
def heartbeat(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    """Keep a session alive."""
    return ctx.services.groups.heartbeat(request)

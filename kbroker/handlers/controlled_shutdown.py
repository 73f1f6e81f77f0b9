"""ControlledShutdown (key 7), version 3: a broker is about to stop, and what it leads goes to others first.

Behaviour: the controller's; see controller/cluster/shutdown.py.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse


@handles(ControlledShutdownRequest, ControlledShutdownResponse, "3", cluster=True)
def controlled_shutdown(
    ctx: RequestContext, request: ControlledShutdownRequest
) -> Awaitable[ControlledShutdownResponse]:
    """Move what the broker leads."""
    return in_cluster(ctx.services).controller.controlled_shutdown(request)

"""ControlledShutdown (key 7), version 3: a broker is about to stop, and what it leads goes to others first.

Behaviour: the controller's (controller/cluster/shutdown.py). One that is not active answers STALE_CONTROLLER_EPOCH
here, as Kafka's does.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.to_controller import ControlledShutdownRequest, ControlledShutdownResponse


@handles(ControlledShutdownRequest, ControlledShutdownResponse, "3", cluster=True)
async def controlled_shutdown(ctx: RequestContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Move what the broker leads."""
    try:
        return await in_cluster(ctx.services).controller.controlled_shutdown(request)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH) from None
        raise

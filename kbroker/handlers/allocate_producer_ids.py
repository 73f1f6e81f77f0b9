"""AllocateProducerIds (key 67), version 0: a broker asks for a block of producer ids (KIP-730).

Behaviour: the controller's; see controller/cluster/producer_ids.py.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.to_controller import AllocateProducerIdsRequest, AllocateProducerIdsResponse


@handles(AllocateProducerIdsRequest, AllocateProducerIdsResponse, "0", cluster=True)
def allocate_producer_ids(
    ctx: RequestContext, request: AllocateProducerIdsRequest
) -> Awaitable[AllocateProducerIdsResponse]:
    """Give a block."""
    return in_cluster(ctx.services).controller.allocate_producer_ids(request)

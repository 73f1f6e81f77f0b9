"""Requests from brokers to the controller of a cluster on ZooKeeper. Only a node of a cluster imports this module.

AllocateProducerIds (key 67), version 0: a broker requests a block of producer ids (KIP-730).

Behaviour: the controller's; see controller/cluster/producer_ids.py.

AlterPartition (key 56), versions 2-3: a leader requests other in-sync replicas (KIP-497).

Behaviour: the controller's; see controller/cluster/alter_partition.py. Version 3 has brokers' epochs, which are not
checked in a cluster on ZooKeeper.

ControlledShutdown (key 7), version 3: the controller moves the leadership of a broker's partitions before it stops.

Behaviour: the controller's (controller/cluster/shutdown.py). A controller that is not active returns
STALE_CONTROLLER_EPOCH here, as Kafka's does.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)


@handles(AllocateProducerIdsRequest, AllocateProducerIdsResponse, "0", cluster=True)
def allocate_producer_ids(
    ctx: RequestContext, request: AllocateProducerIdsRequest
) -> Awaitable[AllocateProducerIdsResponse]:
    """Allocate a block."""
    return in_cluster(ctx.services).controller.allocate_producer_ids(request)


@handles(AlterPartitionRequest, AlterPartitionResponse, "2-3", cluster=True)
def alter_partition(ctx: RequestContext, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
    """Change the in-sync replicas, if that is allowed."""
    return in_cluster(ctx.services).controller.alter_partition(request)


@handles(ControlledShutdownRequest, ControlledShutdownResponse, "3", cluster=True)
async def controlled_shutdown(ctx: RequestContext, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Move leadership away from the broker."""
    try:
        return await in_cluster(ctx.services).controller.controlled_shutdown(request)
    except ApiError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise ApiError(ErrorCode.STALE_CONTROLLER_EPOCH) from None
        raise

"""The requests between brokers and the controller, in a cluster on ZooKeeper.

Only a node of a cluster imports this module.

LeaderAndIsr (key 4), versions 5-7: the controller sets the leaders and followers of the partitions that are hosted
here. Behaviour: handles one partition at a time, and other requests in between. Each partition has its own error. See
replica_manager/manager.py.

StopReplica (key 5), versions 3-4: this broker stops being leader or follower of partitions (KIP-570). Behaviour:
renames deleted partitions before the response is sent, and deletes their files later. See replica_manager/manager.py.

UpdateMetadata (key 6), versions 7-8: the controller sends the live brokers and the changed partitions. Behaviour
(Apache Kafka 3.9, KafkaApis.handleUpdateMetadataRequest): refuses a request for an earlier registration of this broker,
and a request from a controller that is not the latest.

AllocateProducerIds (key 67), version 0: a broker requests a block of producer ids (KIP-730). Behaviour: see
controller/cluster/producer_ids.py.

AlterPartition (key 56), versions 2-3: a leader requests a change of the in-sync replicas (KIP-497). Behaviour: see
controller/cluster/alter_partition.py. Version 3 has broker epochs, which a cluster on ZooKeeper does not check.

ControlledShutdown (key 7), version 3: the controller moves the leadership of a broker's partitions before the broker
stops. Behaviour: see controller/cluster/shutdown.py. A controller that is not active returns STALE_CONTROLLER_EPOCH,
like Kafka's.
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
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)


@handles(LeaderAndIsrRequest, LeaderAndIsrResponse, "5-7", cluster=True)
async def leader_and_isr(ctx: RequestContext, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
    """Read the configs of new topics, create their files, then make this broker the leader or a follower."""
    cluster = in_cluster(ctx.services)
    manager = cluster.replica_manager
    unread = cluster.metadata.read_configs([topic.topic_name for topic in request.topic_states])
    if unread is not None:
        await unread
    made = await manager.make_ahead(request) if unread is not None or manager.has_new(request) else []
    return await manager.become_leader_or_follower(request, made)


@handles(StopReplicaRequest, StopReplicaResponse, "3-4", cluster=True)
async def stop_replica(ctx: RequestContext, request: StopReplicaRequest) -> StopReplicaResponse:
    """Stop replicas, and delete them if requested."""
    return await in_cluster(ctx.services).replica_manager.stop_replicas(request)


@handles(UpdateMetadataRequest, UpdateMetadataResponse, "7-8", cluster=True)
async def update_metadata(ctx: RequestContext, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
    """Apply the metadata, if the request is for this registration and from the latest controller."""
    cluster = ctx.services.cluster
    assert cluster is not None
    manager = cluster.replica_manager
    code = manager.accept(request.controller_epoch, request.broker_epoch)
    if code is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=code)
    if not await cluster.metadata.learn(request, lambda: request.controller_epoch >= manager.controller_epoch):
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    await manager.leave(request)
    return UpdateMetadataResponse()


@handles(AllocateProducerIdsRequest, AllocateProducerIdsResponse, "0", cluster=True)
def allocate_producer_ids(
    ctx: RequestContext, request: AllocateProducerIdsRequest
) -> Awaitable[AllocateProducerIdsResponse]:
    """Allocate a block of producer ids."""
    return in_cluster(ctx.services).controller.allocate_producer_ids(request)


@handles(AlterPartitionRequest, AlterPartitionResponse, "2-3", cluster=True)
def alter_partition(ctx: RequestContext, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
    """Change the in-sync replicas, if the controller allows it."""
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

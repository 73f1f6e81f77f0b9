"""UpdateMetadata (key 6), versions 7-8: the controller tells which brokers live and what has changed of partitions.

Behaviour (Apache Kafka 3.9, KafkaApis.handleUpdateMetadataRequest): a request to an earlier registration of this broker
is refused, and one of a controller that is not the latest.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import ClusterServices
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.from_controller import UpdateMetadataRequest, UpdateMetadataResponse


@handles(UpdateMetadataRequest, UpdateMetadataResponse, "7-8", cluster=True)
def update_metadata(
    ctx: RequestContext, request: UpdateMetadataRequest
) -> UpdateMetadataResponse | Awaitable[Divided[UpdateMetadataResponse]]:
    """Take over what is told, if it is to be believed."""
    cluster = ctx.services.cluster
    assert cluster is not None
    code = cluster.replica_manager.accept(request.controller_epoch, request.broker_epoch)
    if code is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=code)
    return _learn(cluster, request)


async def _learn(cluster: ClusterServices, request: UpdateMetadataRequest) -> Divided[UpdateMetadataResponse]:
    manager = cluster.replica_manager
    work = await cluster.metadata.learn(request, lambda: request.controller_epoch >= manager.controller_epoch)
    return _answered(work, manager.leave(request))


def _answered(learning: Divided[bool], leaving: Divided[None]) -> Divided[UpdateMetadataResponse]:
    if not (yield from learning):
        return UpdateMetadataResponse(error_code=ErrorCode.STALE_CONTROLLER_EPOCH)
    yield from leaving
    return UpdateMetadataResponse()

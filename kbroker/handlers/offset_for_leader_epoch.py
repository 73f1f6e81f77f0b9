"""OffsetForLeaderEpoch (key 23), versions 2-4: the end offset of a leader epoch (KIP-101, KIP-320)."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import each, every
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.logs import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)


@handles(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, "2-4", mirrored(OffsetForLeaderEpochResponse))
async def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up each partition."""
    return await _by_topic(request, lambda topic, partition: _one(ctx, topic, partition))


async def _by_topic(
    request: OffsetForLeaderEpochRequest, look: Callable[[str, OffsetForLeaderPartition], EpochEndOffset]
) -> OffsetForLeaderEpochResponse:
    async def topic(asked: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
        partitions = await each(asked.partitions, lambda partition: look(asked.topic, partition))
        return OffsetForLeaderTopicResult(topic=asked.topic, partitions=partitions)

    return OffsetForLeaderEpochResponse(topics=await every(request.topics, topic))


def _one(ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = ctx.services.replicas.get((topic, wanted.partition))
    if partition is None:
        code = ctx.services.replicas.why_missing(topic, wanted.partition)
        return EpochEndOffset(error_code=code, partition=wanted.partition)
    code = partition.check_leader_epoch(wanted.current_leader_epoch)
    if code:
        return EpochEndOffset(error_code=code, partition=wanted.partition)
    log = partition.log
    try:
        epoch, offset = log.proven_epochs().end_offset_for(wanted.leader_epoch, log.log_end_offset)
    except OSError as err:
        log.report_failure(err)
        return EpochEndOffset(error_code=ErrorCode.KAFKA_STORAGE_ERROR, partition=wanted.partition)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=offset)

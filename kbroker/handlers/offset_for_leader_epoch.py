"""OffsetForLeaderEpoch (key 23), versions 2-4: where a leader epoch ended (KIP-101, KIP-320)."""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


def _on_error(request: OffsetForLeaderEpochRequest, code: int, _message: str | None) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=t.topic,
                partitions=[EpochEndOffset(error_code=code, partition=p.partition) for p in t.partitions],
            )
            for t in request.topics
        ]
    )


@handles(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, "2-4", _on_error)
def offset_for_leader_epoch(ctx: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    """Look each partition up."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(topic=t.topic, partitions=[_one(ctx, t.topic, p) for p in t.partitions])
            for t in request.topics
        ]
    )


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

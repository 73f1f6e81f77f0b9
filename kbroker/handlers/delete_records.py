"""DeleteRecords (key 21), versions 0-2: move the log start offset up (KIP-107). Offset -1 means the high watermark."""

from __future__ import annotations

from kbroker.controller.decide import INTERNAL_TOPICS
from kbroker.divided import Divided, each, every
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)

_HIGH_WATERMARK = -1


def _on_error(request: DeleteRecordsRequest, code: int, _message: str | None) -> Divided[DeleteRecordsResponse]:
    def topic(asked: DeleteRecordsTopic) -> Divided[DeleteRecordsTopicResult]:
        partitions = yield from each(asked.partitions, lambda partition: _result(partition.partition_index, code))
        return DeleteRecordsTopicResult(asked.name, partitions)

    return DeleteRecordsResponse(topics=(yield from every(request.topics, topic)))


def _result(index: int, code: int, low_watermark: int = -1) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=code)


@handles(DeleteRecordsRequest, DeleteRecordsResponse, "0-2", _on_error)
def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> Divided[DeleteRecordsResponse]:
    """Delete partition by partition; a partition named twice counts once, with its last offset."""
    topics: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets = topics.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
            yield
        yield

    def of_topic(asked: tuple[str, dict[int, int]]) -> Divided[DeleteRecordsTopicResult]:
        name, offsets = asked
        results = yield from each(offsets.items(), lambda wanted: _delete(ctx, name, *wanted))
        return DeleteRecordsTopicResult(name, results)

    results = yield from every(topics.items(), of_topic)
    ctx.services.replicas.logs.save_log_starts()
    return DeleteRecordsResponse(topics=results)


def _delete(ctx: RequestContext, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    partition = ctx.services.replicas.get((topic, index))
    if partition is None:
        return _result(index, ctx.services.replicas.why_missing(topic, index))
    if topic in INTERNAL_TOPICS:
        return _result(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not partition.leading:
        return _result(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log = partition.log
    if log.config.compact and not log.config.delete:
        return _result(index, ErrorCode.POLICY_VIOLATION)
    if offset == _HIGH_WATERMARK:
        offset = log.high_watermark
    if offset < 0:
        return _result(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        log.advance_log_start(offset, ctx.services.clock.now_ms())
    except ApiError as err:
        return _result(index, err.code)
    partition.poke()
    return _result(index, ErrorCode.NONE, log.log_start_offset)

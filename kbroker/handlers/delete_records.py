"""DeleteRecords (key 21), versions 0-2: move the log start offset up (KIP-107). Offset -1 means the high watermark.

Behaviour: in a cluster the response waits until all live replicas have deleted the records, or until the timeout.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.remote_rules import check_names_no_segments
from kbroker.handlers.view_rules import is_view
from kbroker.long_work import each, every, turn
from kbroker.partition import GiveUp, Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kbroker.topic_names import INTERNAL_TOPICS

_HIGH_WATERMARK = -1


class _Behind(NamedTuple):
    """A partition whose other replicas have not yet deleted the records below `offset`."""

    partition: Partition
    offset: int
    result: DeleteRecordsPartitionResult


def _result(index: int, code: int, low_watermark: int = -1) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low_watermark, error_code=code)


@handles(DeleteRecordsRequest, DeleteRecordsResponse, "0-2", mirrored(DeleteRecordsResponse, low_watermark=-1))
async def delete_records(ctx: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete records from one partition after another. If a partition is repeated, only its last offset counts."""
    topics: dict[str, dict[int, int]] = {}
    behind: list[_Behind] = []
    for topic in request.topics:
        offsets = topics.setdefault(topic.name, {})
        for partition in topic.partitions:
            offsets[partition.partition_index] = partition.offset
            await turn
        await turn

    async def of_topic(asked: tuple[str, dict[int, int]]) -> DeleteRecordsTopicResult:
        name, offsets = asked
        results = await each(offsets.items(), lambda wanted: _delete(ctx, name, *wanted, behind))
        return DeleteRecordsTopicResult(name, results)

    results = await every(topics.items(), of_topic)
    ctx.services.replicas.logs.save_log_starts()
    answer = DeleteRecordsResponse(topics=results)
    return await _deleted_by_all(answer, behind, request.timeout_ms) if behind else answer


async def _deleted_by_all(
    answer: DeleteRecordsResponse, behind: list[_Behind], timeout_ms: int
) -> DeleteRecordsResponse:
    """Return the response when the other replicas have also deleted the records (Kafka: DelayedDeleteRecords)."""
    loop = asyncio.get_running_loop()
    waits: list[tuple[_Behind, GiveUp, asyncio.Future[ErrorCode]]] = []
    for each_one in behind:
        done: asyncio.Future[ErrorCode] = loop.create_future()
        give_up = each_one.partition.when_deleted(each_one.offset, done.set_result)
        if give_up is not None:
            waits.append((each_one, give_up, done))
        else:
            _finish(each_one, done.result())
    try:
        if waits:
            await asyncio.wait([done for _, _, done in waits], timeout=max(timeout_ms, 0) / 1000)
    finally:
        for _, give_up, _ in waits:
            give_up()
    for each_one, _, done in waits:
        _finish(each_one, done.result() if done.done() else ErrorCode.REQUEST_TIMED_OUT)
    return answer


def _finish(behind: _Behind, code: ErrorCode) -> None:
    behind.result.error_code = code
    behind.result.low_watermark = -1 if code else behind.partition.low_watermark


def _delete(
    ctx: RequestContext, topic: str, index: int, offset: int, behind: list[_Behind]
) -> DeleteRecordsPartitionResult:
    partition = ctx.services.replicas.get((topic, index))
    if partition is None and is_view(ctx.services, topic):
        return _result(index, ErrorCode.POLICY_VIOLATION)
    if partition is None:
        return _result(index, ctx.services.replicas.why_missing(topic, index))
    if topic in INTERNAL_TOPICS:
        return _result(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    try:
        check_names_no_segments(topic, is_tiered=ctx.services.tiers is not None)
    except ApiError as error:
        return _result(index, error.code)
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
    result = _result(index, ErrorCode.NONE, log.earliest_offset)
    if partition.low_watermark < offset:
        behind.append(_Behind(partition, offset, result))
    return result

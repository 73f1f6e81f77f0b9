"""The APIs that look up offsets: by time, and by leader epoch.

ListOffsets (key 2), versions 1-11: the offset for a timestamp, or for one of the special timestamps.

-1 latest (the last stable offset for read_committed)   -2 earliest   -3 the largest timestamp (v7+)
-4 earliest local (v8+)   -5 latest tiered (v9+)   -6 earliest pending upload (v11+)

OffsetForLeaderEpoch (key 23), versions 2-4: the end offset of a leader epoch (KIP-101, KIP-320).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kbroker.handlers import view_offsets
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import each, every, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.logs import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from kbroker.tiers.metadata import Owner
from kbroker.views.hosted_views import HostedView

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_READ_COMMITTED = 1
_CONSUMER = -1
_DEBUGGING = -2
"""The replica id of tools such as ReplicaVerificationTool. A follower answers these tools from its own log."""
_FIRST_NOT_AVAILABLE_VERSION = 5
_REMOTE_TIMEOUT = "remote.list.offsets.request.timeout.ms"

Until = tuple[float, float]
"""The times of the loop's clock at which the request ends its scans of views, and its reads of remote storage."""


@handles(ListOffsetsRequest, ListOffsetsResponse, "1-11", mirrored(ListOffsetsResponse))
async def list_offsets(ctx: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """Look up the offset of each partition."""
    asked: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            asked[key] = asked.get(key, 0) + 1
            await turn
        await turn
    topics: dict[str, list[ListOffsetsPartitionResponse]] = {}
    now = asyncio.get_running_loop().time()
    until = now + view_offsets.PATIENCE_SECONDS, now + ctx.services.config.get_int(_REMOTE_TIMEOUT) / 1000
    for topic in request.topics:
        answers = topics.setdefault(topic.name, [])
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            if asked[key] == 1:
                answers.append(await _one(ctx, request, topic.name, wanted, until))
            elif asked[key]:
                asked[key] = 0  # refused, once
                answers.append(_answer(wanted, ErrorCode.INVALID_REQUEST))
            await turn
        await turn
    answered = each(topics.items(), lambda found: ListOffsetsTopicResponse(*found))
    return ListOffsetsResponse(topics=await answered)


def _answer(wanted: ListOffsetsPartition, code: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=code)


async def _one(
    ctx: RequestContext, request: ListOffsetsRequest, topic: str, wanted: ListOffsetsPartition, until: Until
) -> ListOffsetsPartitionResponse:
    """Look up an offset."""
    timestamp = wanted.timestamp
    if timestamp < 0 and (timestamp < EARLIEST_PENDING_UPLOAD or ctx.version < _SINCE.get(timestamp, 0)):
        return _answer(wanted, ErrorCode.UNSUPPORTED_VERSION)
    partition = ctx.services.replicas.get((topic, wanted.partition_index))
    view = None
    if partition is None and request.replica_id == _CONSUMER:
        try:
            view = ctx.services.views.find(topic, wanted.partition_index)
        except ApiError as err:
            return _answer(wanted, err.code)
        partition = None if view is None else view.partition
    if partition is None:
        return _answer(wanted, ctx.services.replicas.why_missing(topic, wanted.partition_index))
    check = partition.check_epoch if request.replica_id == _DEBUGGING else partition.check_leader_epoch
    code = check(wanted.current_leader_epoch)
    if code:
        return _answer(wanted, code)
    log = partition.log
    unknown = False
    try:
        if request.replica_id != _CONSUMER:
            visible_end = log.log_end_offset
        else:
            now_ms = ctx.services.clock.now_ms()
            visible_end = await log.readable_end(now_ms, committed=request.isolation_level == _READ_COMMITTED)
            unknown = not partition.knows_high_watermark
        if view is None:
            answer = await _lookup(ctx, partition, wanted, visible_end, until)
        else:
            answer = await _of_view(view, wanted, until, committed=request.isolation_level == _READ_COMMITTED)
        if unknown and (timestamp == LATEST or (timestamp >= MAX_TIMESTAMP and answer.offset < 0)):
            # A new leader does not know yet up to which offset consumers could read from its predecessor
            # (Partition.scala).
            new = ctx.version >= _FIRST_NOT_AVAILABLE_VERSION
            return _answer(wanted, ErrorCode.OFFSET_NOT_AVAILABLE if new else ErrorCode.LEADER_NOT_AVAILABLE)
        return answer
    except ApiError as err:
        code = err.code
        if code == ErrorCode.OFFSET_NOT_AVAILABLE and ctx.version < _FIRST_NOT_AVAILABLE_VERSION:
            code = ErrorCode.LEADER_NOT_AVAILABLE
        return _answer(wanted, code)  # only this partition fails
    except OSError as err:
        log.report_failure(err)
        return _answer(wanted, ErrorCode.KAFKA_STORAGE_ERROR)


async def _lookup(
    ctx: RequestContext, partition: Partition, wanted: ListOffsetsPartition, visible_end: int, until: Until
) -> ListOffsetsPartitionResponse:
    log, timestamp = partition.log, wanted.timestamp
    answer = _answer(wanted, ErrorCode.NONE)
    if timestamp == LATEST:
        answer.offset, answer.leader_epoch = visible_end, partition.leader_epoch
    elif timestamp in _FIXED:
        answer.offset = _FIXED[timestamp](log)
        if answer.offset >= 0:
            answer.leader_epoch = log.proven_epochs().epoch_for_offset(answer.offset)
    else:
        while True:
            found = await _remote_by_timestamp(ctx, partition, timestamp, until[1]) if log.tier is not None else None
            if found is not None:
                answer.offset, answer.timestamp, answer.leader_epoch = found
                break
            begins = log.log_start_offset
            await _by_timestamp(log, timestamp, visible_end, answer)
            if log.tier is None or timestamp < 0 or log.log_start_offset == begins:
                break  # otherwise the local records may have been deleted before the search examined them
    return answer


def _latest_tiered(log: PartitionLog) -> int:
    return _copied_to(log) - 1 if _is_tiered(log) and _copied_to(log) else -1


def _earliest_pending_upload(log: PartitionLog) -> int:
    if not _is_tiered(log):
        return -1
    pending = max(_copied_to(log), log.log_start_offset)
    return pending if pending < log.log_end_offset else -1  # as Kafka 4.4.0 answers


def _is_tiered(log: PartitionLog) -> bool:
    """Whether a log has remote records. It has none after remote storage was switched off for its topic."""
    return log.tier is not None and log.config.remote_storage_enable


def _copied_to(log: PartitionLog) -> int:
    """Return the end of the records in remote storage. Raises ApiError while it is unknown, shortly after a start."""
    if log.tier is None or log.tier.end_offset < 0:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return log.tier.end_offset


_FIXED: Final[dict[int, Callable[[PartitionLog], int]]] = {
    EARLIEST: lambda log: log.earliest_offset,
    EARLIEST_LOCAL: lambda log: log.log_start_offset,
    LATEST_TIERED: _latest_tiered,
    EARLIEST_PENDING_UPLOAD: _earliest_pending_upload,
}
"""The offsets of special timestamps that depend on the log alone."""


async def _remote_by_timestamp(
    ctx: RequestContext, partition: Partition, timestamp: int, until: float
) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first remote record with at least this timestamp, or None.

    Raises ApiError. Only the local disk is searched for the record with the largest timestamp, as in Kafka.
    """
    tiers = ctx.services.tiers
    if timestamp < 0 or tiers is None or not _is_tiered(partition.log):
        return None
    _copied_to(partition.log)
    owner = Owner(partition.topic, partition.topic_id, partition.index)
    try:
        return await tiers.reader.first_at(owner, partition.log, timestamp, until)
    except TimeoutError:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT) from None


async def _of_view(
    view: HostedView, wanted: ListOffsetsPartition, until: Until, *, committed: bool
) -> ListOffsetsPartitionResponse:
    timestamp, answer = wanted.timestamp, _answer(wanted, ErrorCode.NONE)
    if timestamp == LATEST:
        answer.offset = await view_offsets.latest(view, until[0], committed=committed)
        answer.leader_epoch = view.partition.leader_epoch
    elif timestamp == MAX_TIMESTAMP:
        await view_offsets.largest_time(view, answer, until[0], committed=committed)
    elif timestamp >= 0:
        await view_offsets.at_time(view, timestamp, answer, until[0], committed=committed)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        log = view.partition.log
        answer.offset = log.log_start_offset  # a view shows only the records on the local disk
        answer.leader_epoch = log.proven_epochs().epoch_for_offset(answer.offset)
    return answer


async def _by_timestamp(
    log: PartitionLog, timestamp: int, visible_end: int, answer: ListOffsetsPartitionResponse
) -> None:
    if timestamp == MAX_TIMESTAMP and log.maturity is not None:
        # The records with the largest timestamps are the ones that still wait for the delay.
        found = await log.find_timestamp(log.timestamp_before(visible_end))
    else:
        found = await (log.find_max_timestamp() if timestamp == MAX_TIMESTAMP else log.find_timestamp(timestamp))
    if found is not None and found[0] < visible_end:
        answer.offset, answer.timestamp, answer.leader_epoch = found


@handles(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, "2-4", mirrored(OffsetForLeaderEpochResponse))
async def offset_for_leader_epoch(
    ctx: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Look up the end offset of each partition."""
    return await _by_topic(request, lambda topic, partition: _end_of_epoch(ctx, topic, partition))


async def _by_topic(
    request: OffsetForLeaderEpochRequest, query: Callable[[str, OffsetForLeaderPartition], EpochEndOffset]
) -> OffsetForLeaderEpochResponse:
    async def topic(asked: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
        partitions = await each(asked.partitions, lambda partition: query(asked.topic, partition))
        return OffsetForLeaderTopicResult(topic=asked.topic, partitions=partitions)

    return OffsetForLeaderEpochResponse(topics=await every(request.topics, topic))


def _end_of_epoch(ctx: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = ctx.services.replicas.get((topic, wanted.partition))
    if partition is None:
        try:
            view = ctx.services.views.find(topic, wanted.partition)
        except ApiError as err:
            return EpochEndOffset(error_code=err.code, partition=wanted.partition)
        partition = None if view is None else view.partition
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

"""Produce's results for refused, failed and appended batches, transactional or not.

Owns the checks before the log receives a batch, their order, and the form of errors. Also owns the append of batches
that must be opened, which would block the loop for too long in one step. With acks=all on partitions with other
replicas, the request waits for the high watermark of each partition (Apache Kafka: DelayedProduce). The wait also ends
with the leadership, and with the request's timeout. Serves no API: produce.py and produce_in_transaction.py use it.

Between a batch's first check and its append the partition may change. Therefore the partition checks the batch again
during the append, with its current settings.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kbroker.handlers.leader_hints import LeaderHints
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.handlers.view_rules import is_view, read_only
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.log.record_check import RecordCheck
from kbroker.log.record_validation import Opened, Opening, TakesLonger, judged
from kbroker.long_work import awaited
from kbroker.partition import GiveUp, Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from kbroker.protocol.wire import Buffer
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.topic_names import INTERNAL_TOPICS

log = logging.getLogger(__name__)

HEADER_FIELDS = struct.Struct(">8xi4xb4xh")
"""The fields batch length, magic and attributes of a batch's header."""
HEADER_BYTES = 61
LENGTH_OVERHEAD = 12
MAGIC = 2
TRANSACTIONAL = 0x10
CODEC = 0x07
ZSTD = 4
ACKS = frozenset({-1, 0, 1})

_UP_TO_MAGIC = 17
_LEGACY_OVERHEAD = 14
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
_CORRUPT = (-1, 0)
_FIRST_ZSTD_VERSION = 7
_FIRST_HINT_VERSION = 10
_FIRST_ID_VERSION = 13
_PREFIX = struct.Struct(">8xi4xb")


def check_first_batches(request: ProduceRequest) -> bool:
    """Raise ApiError for a fault that makes the complete request invalid, before any append.

    Return True at the first transactional batch, without checking later batches, as in Kafka
    (RequestUtils.hasTransactionalRecords). Faults of later batches are errors of their partitions only.
    """
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None:
                continue
            if len(records) >= HEADER_BYTES:
                length, magic, attributes = HEADER_FIELDS.unpack_from(records)
                if magic == MAGIC and length + LENGTH_OVERHEAD == len(records) and not attributes & TRANSACTIONAL:
                    continue
            if _opens_with_transaction(records):
                if request.transactional_id is None:
                    raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return True
    return False


def _opens_with_transaction(records: Buffer) -> bool:
    """Whether the first batch is transactional. Raises ApiError if the bytes cannot be a batch."""
    if len(records) < _UP_TO_MAGIC:
        return False
    length, magic = _PREFIX.unpack_from(records)
    if length < _LEGACY_OVERHEAD:
        text = f"Record size {length} is less than the minimum record overhead ({_LEGACY_OVERHEAD})"
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, text)
    if not 0 <= magic <= MAGIC:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}")
    if length + LENGTH_OVERHEAD > len(records) or magic != MAGIC or length + LENGTH_OVERHEAD < HEADER_BYTES:
        return False
    return bool(HEADER_FIELDS.unpack_from(records)[2] & TRANSACTIONAL)


def refusal(
    ctx: RequestContext, request: ProduceRequest, name: str, data: PartitionProduceData
) -> PartitionProduceResponse | None:
    """Return the error for a partition whose batch must not be appended, or None.

    The order of checks is the same as in KafkaApis.handleProduceRequest: the topic, the batch, the append.
    check_first_batches has already checked the complete request.
    """
    batches = list(_batches(data.records or b""))
    attributes = batches[0][1] if batches else 0
    log_start = -1
    code = ErrorCode.NONE
    partition = ctx.services.replicas.get((name, data.index))
    if not name and ctx.version >= _FIRST_ID_VERSION:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif partition is None and is_view(ctx.services, name):
        text = read_only(name)
        return PartitionProduceResponse(
            index=data.index, error_code=ErrorCode.INVALID_REQUEST, base_offset=-1, error_message=text
        )
    elif partition is None:
        code = ctx.services.replicas.why_missing(name, data.index)
    elif _CORRUPT in batches:
        code = ErrorCode.CORRUPT_MESSAGE
    elif len(batches) != 1 or batches[0][0] != MAGIC:
        code = ErrorCode.INVALID_RECORD
    elif ctx.version < _FIRST_ZSTD_VERSION and attributes & CODEC == ZSTD:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    elif request.acks not in ACKS:
        code = ErrorCode.INVALID_REQUIRED_ACKS
    elif name in INTERNAL_TOPICS and ctx.client_id != "__admin_client":
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    elif attributes & CODEC > ZSTD:
        code, log_start = ErrorCode.UNKNOWN_SERVER_ERROR, partition.log.log_start_offset
    if code == ErrorCode.NONE:
        return None
    return PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1, log_start_offset=log_start)


def _batches(records: memoryview | bytes) -> Iterator[tuple[int, int]]:
    """Yield (magic, attributes) of each complete batch, or _CORRUPT for bytes that cannot be a batch."""
    position, end = 0, len(records)
    while end - position >= _UP_TO_MAGIC:
        length, magic = _PREFIX.unpack_from(records, position)
        if length < _LEGACY_OVERHEAD or not 0 <= magic <= MAGIC:
            yield _CORRUPT
            return
        if position + length + LENGTH_OVERHEAD > end:
            return
        whole = magic == MAGIC and length + LENGTH_OVERHEAD >= HEADER_BYTES
        yield magic, HEADER_FIELDS.unpack_from(records, position)[2] if whole else 0
        position += length + LENGTH_OVERHEAD


def failure(partition: Partition, error: Exception) -> PartitionProduceResponse:
    """Return the result of a failed append. Most errors have no message (Kafka: appendToLocalLog).

    After an unexpected failure, the appends to other partitions stay in the log.
    """
    if not isinstance(error, AppendError):
        code = code_of_unexpected(error)
        return PartitionProduceResponse(index=partition.index, error_code=code, base_offset=-1)
    return PartitionProduceResponse(
        index=partition.index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=-1 if error.code in _WITHOUT_LOG_START else partition.log.log_start_offset,
        record_errors=[BatchIndexAndErrorMessage(i, text) for i, text in error.record_errors],
        error_message=error.response_message,
    )


def code_of_unexpected(error: Exception) -> ErrorCode:
    """Return the error code for an unexpected failure, and log it."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, OSError):
        log.error("Produce: %s", error)
        return ErrorCode.KAFKA_STORAGE_ERROR
    log.error("Produce failed", exc_info=error)
    return ErrorCode.UNKNOWN_SERVER_ERROR


def add_leader_hints(ctx: RequestContext, answer: ProduceResponse) -> None:
    """Add the current leaders of partitions that this broker does not lead."""
    hints = LeaderHints(ctx)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            leader = hints.leader(topic.topic_id, topic.name, partition.index)
            if leader is not None:
                partition.current_leader = LeaderIdAndEpoch(*leader)
    answer.node_endpoints = [NodeEndpoint(n.node_id, n.host, n.port, n.rack) for n in hints.nodes]


class Uncommitted(NamedTuple):
    """A batch in the log that ends before `offset`.

    `answer`, the partition's result, waits for the commit of the batch.
    """

    partition: Partition
    offset: int
    answer: PartitionProduceResponse


Groups = dict[Partition, tuple[int, list[PartitionProduceResponse]]]
"""Partition -> the offset up to which (exclusive) records must be committed, and the results that wait for the commit.
"""


def appended(
    partition: Partition, acks: int, info: AppendInfo, uncommitted: list[Uncommitted]
) -> PartitionProduceResponse:
    """Return the result of an appended batch. Add the batch to `uncommitted` if the response has to wait."""
    answer = PartitionProduceResponse(
        partition.index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
    )
    if acks == -1 and partition.is_replicated and partition.log.high_watermark <= info.last_offset:
        uncommitted.append(Uncommitted(partition, info.last_offset + 1, answer))
    return answer


def group(uncommitted: Sequence[Uncommitted], groups: Groups) -> None:
    """Group batches by partition, so that the request waits once for each partition."""
    for partition, offset, answer in uncommitted:
        known, answers = groups.get(partition, (0, []))
        answers.append(answer)
        groups[partition] = max(known, offset), answers


def finished(
    ctx: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    uncommitted: Sequence[Uncommitted],
    later: list[Uncommitted] | None,
    *,
    failed: bool,
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Return the response to a request, or a future of the response if some batches are not committed yet.

    With acks=0 there is no response; the connection is closed if a partition `failed`. If the request is a piece of a
    larger request, its uncommitted batches are added to `later`.
    """
    if request.acks == 0:
        if failed:
            raise CloseConnection("a Produce with acks=0 failed")
        return None
    if failed and ctx.version >= _FIRST_HINT_VERSION:
        add_leader_hints(ctx, response)
    if uncommitted and later is not None:
        later += uncommitted
    elif uncommitted:
        groups: Groups = {}
        group(uncommitted, groups)
        return all_committed(ctx, response, groups, request.timeout_ms)
    return response


def all_committed(
    ctx: RequestContext, response: ProduceResponse, groups: Groups, timeout_ms: int
) -> asyncio.Future[ProduceResponse]:
    """Return a future of the response to a request with batches that are not committed yet."""
    return _DelayedProduce(ctx, response, groups, timeout_ms).future


class _DelayedProduce:
    """A Produce request that waits for the commit of its batches."""

    __slots__ = ("_ctx", "_failed", "_left", "_response", "_timer", "_version", "_waits", "future")

    def __init__(self, ctx: RequestContext, response: ProduceResponse, groups: Groups, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._ctx = ctx
        self._version = ctx.version
        self._response = response
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._left = {partition: answers for partition, (_, answers) in groups.items()}
        self._waits: dict[Partition, GiveUp] = {}
        self.future: asyncio.Future[ProduceResponse] = loop.create_future()
        for partition, (offset, _) in groups.items():
            give_up = partition.when_committed(offset, partial(self._finish_one, partition))
            if give_up is not None:
                self._waits[partition] = give_up
        if self._left:
            self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._expire)
            ctx.services.replicas.traffic.delayed_produces += 1
            self.future.add_done_callback(self._forget)

    def _finish_one(self, partition: Partition, code: ErrorCode) -> None:
        self._note(self._left.pop(partition), code)
        self._waits.pop(partition, None)
        if not self._left:
            self._finish()

    def _note(self, answers: list[PartitionProduceResponse], code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self._failed = True
            for answer in answers:
                answer.error_code = code

    def _expire(self) -> None:
        for answers in self._left.values():
            self._note(answers, ErrorCode.REQUEST_TIMED_OUT)
        self._finish()

    def _finish(self) -> None:
        if self.future.done():
            return
        if self._failed and self._version >= _FIRST_HINT_VERSION:
            add_leader_hints(self._ctx, self._response)
        self.future.set_result(self._response)

    def _forget(self, _future: asyncio.Future[ProduceResponse]) -> None:
        self._ctx.services.replicas.traffic.delayed_produces -= 1
        if self._timer is not None:
            self._timer.cancel()
        for give_up in self._waits.values():
            give_up()
        self._waits.clear()


class Unopened(NamedTuple):
    """A batch that must be opened. Its result is stored in `answers[slot]`."""

    partition: Partition
    records: Buffer
    opening: Opening
    answers: list[PartitionProduceResponse]
    slot: int
    guard: object = UNCHECKED


async def append_in_slices(
    ctx: RequestContext,
    request: ProduceRequest,
    unopened: Sequence[Unopened],
    response: ProduceResponse,
    uncommitted: list[Uncommitted],
    later: list[Uncommitted] | None,
    *,
    failed: bool,
) -> ProduceResponse | None:
    """Open and append one batch after another.

    Return the response, which already has the results of the other partitions.
    """
    if any(item.opening.check is not None for item in unopened):
        unopened = [_kept(item) for item in unopened]
    for item in unopened:
        try:
            info = await _append(ctx, request.acks, item)
        except Exception as err:  # noqa: BLE001 - earlier appends must still be reported
            failed = True
            item.answers[item.slot] = failure(item.partition, err)
        else:
            item.answers[item.slot] = appended(item.partition, request.acks, info, uncommitted)
    return await awaited(finished(ctx, request, response, uncommitted, later, failed=failed))


def _kept(item: Unopened) -> Unopened:
    """Return a batch with its own copy of the bytes, because a check may wait while the receive buffer is reused."""
    records = memoryview(bytearray(item.records))
    return item._replace(records=records, opening=item.opening.on(records))


async def _append(ctx: RequestContext, acks: int, item: Unopened) -> AppendInfo:
    services, partition, opening = ctx.services, item.partition, item.opening
    while True:
        opened = await services.replicas.openings.run(opening.again, opening.work)
        try:
            if opening.check is not None:
                opened = await _judged(ctx, partition, opened, opening.check)
            now_ms = services.clock.now_ms()
            return partition.append(item.records, acks, now_ms, CLIENT, item.guard, opened=opened)
        except TakesLonger as longer:  # the topic's settings have changed: open the batch again
            opening = longer.opening


async def _judged(ctx: RequestContext, partition: Partition, opened: Opened, check: RecordCheck) -> Opened:
    def may_write(topic: str) -> bool:
        authorizer = ctx.services.authorizer
        if authorizer is None:
            return True
        rights = authorizer.rights_of(ctx.principal, ctx.client_host.removeprefix("/"))
        return rights.may(Operation.WRITE, ResourceType.TOPIC, topic)

    try:
        return await judged(opened, check, partition.log.producers.is_repeated, may_write)
    except AppendError as error:
        partition.traffic.refused(error)
        raise

"""Produce's responses to refused and failed batches, within transactions and without.

Owns the checks before the log receives a batch, their order, and the form of errors. Serves no API: produce.py and
produce_in_transaction.py use it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator

from kbroker.handlers.leader_hints import LeaderHints
from kbroker.handlers.registry import RequestContext
from kbroker.log.append_info import AppendError
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
from kbroker.topic_names import INTERNAL_TOPICS

log = logging.getLogger(__name__)

LOOK = struct.Struct(">8xi4xb4xh")
"""Fields of a batch's header: batch length, magic, attributes."""
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
_FIRST_ID_VERSION = 13
_PREFIX = struct.Struct(">8xi4xb")


def check_first_batches(request: ProduceRequest) -> bool:
    """Check for faults that refuse a request as a whole, before any append; raises ApiError.

    As in Kafka (RequestUtils.hasTransactionalRecords) the check ends at the first transactional batch, and then returns
    True: faults of later batches concern their partitions only.
    """
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is None:
                continue
            if len(records) >= HEADER_BYTES:
                length, magic, attributes = LOOK.unpack_from(records)
                if magic == MAGIC and length + LENGTH_OVERHEAD == len(records) and not attributes & TRANSACTIONAL:
                    continue
            if _opens_with_transaction(records):
                if request.transactional_id is None:
                    raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
                return True
    return False


def _opens_with_transaction(records: Buffer) -> bool:
    """Whether the first batch is transactional; raises ApiError if it cannot be a batch."""
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
    return bool(LOOK.unpack_from(records)[2] & TRANSACTIONAL)


def refusal(
    ctx: RequestContext, request: ProduceRequest, name: str, data: PartitionProduceData
) -> PartitionProduceResponse | None:
    """Return the error for a partition whose batch must not be appended, or None.

    The order of checks is that of KafkaApis.handleProduceRequest: the topic, the batch, the append. check_first_batches
    has checked the request as a whole before.
    """
    batches = list(_batches(data.records or b""))
    attributes = batches[0][1] if batches else 0
    log_start = -1
    code = ErrorCode.NONE
    partition = ctx.services.replicas.get((name, data.index))
    if not name and ctx.version >= _FIRST_ID_VERSION:
        code = ErrorCode.UNKNOWN_TOPIC_ID
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
    """Yield (magic, attributes) of each whole batch, or _CORRUPT for bytes that cannot be a batch."""
    position, end = 0, len(records)
    while end - position >= _UP_TO_MAGIC:
        length, magic = _PREFIX.unpack_from(records, position)
        if length < _LEGACY_OVERHEAD or not 0 <= magic <= MAGIC:
            yield _CORRUPT
            return
        if position + length + LENGTH_OVERHEAD > end:
            return
        whole = magic == MAGIC and length + LENGTH_OVERHEAD >= HEADER_BYTES
        yield magic, LOOK.unpack_from(records, position)[2] if whole else 0
        position += length + LENGTH_OVERHEAD


def failure(index: int, err: AppendError, log_start_offset: int) -> PartitionProduceResponse:
    """Return the result for a failed append. Only record validation has texts (ReplicaManager.appendToLocalLog)."""
    return PartitionProduceResponse(
        index=index,
        error_code=err.code,
        base_offset=-1,
        log_start_offset=-1 if err.code in _WITHOUT_LOG_START else log_start_offset,
        record_errors=[BatchIndexAndErrorMessage(i, text) for i, text in err.record_errors],
        error_message=err.message if err.record_errors else None,
    )


def unexpected(index: int, error: Exception) -> PartitionProduceResponse:
    """Return the result for an unexpected failure of an append; appends to other partitions remain."""
    return PartitionProduceResponse(index=index, error_code=code_of_unexpected(error), base_offset=-1)


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

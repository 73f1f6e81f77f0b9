"""DescribeProducers (key 61), version 0: the idempotent producers with state in a partition (KIP-664)."""

from __future__ import annotations

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.long_work import each, every
from kbroker.partition import Partition
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.protocol.messages.transaction_listings import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from kbroker.topic_names import topic_name_fault

MAX_REPEATED = 100_000
"""Most producers that one response lists again because their partition is named again: some 4 MB."""


def _failed(index: int, code: ErrorCode, message: str | None) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=code, error_message=message)


@handles(DescribeProducersRequest, DescribeProducersResponse, "0", mirrored(DescribeProducersResponse))
async def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """List producers, one partition at a time; a partition that is named again shares its list, within a limit."""
    known: dict[Partition, list[ProducerState]] = {}
    left = MAX_REPEATED

    async def one(topic: str, index: int) -> PartitionResponse:
        nonlocal left
        refused = _refused(ctx, topic, index)
        partition = ctx.services.replicas.get((topic, index))
        if refused is not None or partition is None:
            return refused or _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        producers = known.get(partition)
        if producers is None:
            producers = known[partition] = await each(partition.log.active_producers(), _state)
        else:
            left -= len(producers)
            if left < 0:
                return _failed(index, ErrorCode.INVALID_REQUEST, "The request names this partition too often.")
        return PartitionResponse(partition_index=index, active_producers=producers)

    async def of_topic(asked: TopicRequest) -> TopicResponse:
        return TopicResponse(asked.name, await every(asked.partition_indexes, lambda i: one(asked.name, i)))

    return DescribeProducersResponse(topics=await every(request.topics, of_topic))


def _refused(ctx: RequestContext, topic: str, index: int) -> PartitionResponse | None:
    """Return the error for a partition without a replica on this broker, or None; a follower uses its own log."""
    fault = topic_name_fault(topic)
    if fault is not None:
        return _failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")
    if topic not in ctx.services.controller.state.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _failed(index, code, DEFAULT_MESSAGES[code])
    if ctx.services.replicas.get((topic, index)) is not None:
        return None
    code = ctx.services.replicas.why_missing(topic, index)
    if code != ErrorCode.KAFKA_STORAGE_ERROR and ctx.services.controller.state.partition(topic, index) is not None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return _failed(index, code, None)


def _state(p: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=p.producer_id,
        producer_epoch=p.producer_epoch,
        last_sequence=p.last_sequence,
        last_timestamp=p.last_timestamp,
        coordinator_epoch=p.coordinator_epoch,
        current_txn_start_offset=p.current_txn_first_offset,
    )

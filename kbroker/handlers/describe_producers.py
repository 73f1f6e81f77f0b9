"""DescribeProducers (key 61), version 0: the idempotent producers with state in a partition (KIP-664)."""

from __future__ import annotations

from kbroker.controller.decide import topic_name_fault
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


def _on_error(request: DescribeProducersRequest, code: int, message: str | None) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(t.name, [_failed(i, ErrorCode(code), message) for i in t.partition_indexes])
            for t in request.topics
        ]
    )


def _failed(index: int, code: ErrorCode, message: str | None) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=code, error_message=message)


@handles(DescribeProducersRequest, DescribeProducersResponse, "0", _on_error)
def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """List producers, partition by partition."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(t.name, [_partition(ctx, t.name, i) for i in t.partition_indexes]) for t in request.topics
        ]
    )


def _partition(ctx: RequestContext, topic: str, index: int) -> PartitionResponse:
    fault = topic_name_fault(topic)
    if fault is not None:
        return _failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")
    if topic not in ctx.services.controller.state.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _failed(index, code, DEFAULT_MESSAGES[code])
    partition = ctx.services.replicas.get((topic, index))
    if partition is None or not partition.leading:
        code = ctx.services.replicas.why_missing(topic, index)
        if code != ErrorCode.KAFKA_STORAGE_ERROR and ctx.services.controller.state.partition(topic, index) is not None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return _failed(index, code, None)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=p.producer_id,
                producer_epoch=p.producer_epoch,
                last_sequence=p.last_sequence,
                last_timestamp=p.last_timestamp,
                coordinator_epoch=p.coordinator_epoch,
                current_txn_start_offset=p.current_txn_first_offset,
            )
            for p in partition.log.active_producers()
        ],
    )

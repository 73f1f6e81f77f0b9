"""DescribeTopicPartitions (key 75), version 0: partitions of topics, sorted by name, page by page (KIP-966)."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.handlers.metadata import NOT_ASKED, TOPIC_OPERATIONS
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import each, in_order, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.cluster import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kbroker.topic_names import INTERNAL_TOPICS, topic_name_fault


@handles(
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    "0",
    mirrored(DescribeTopicPartitionsResponse, topic_authorized_operations=NOT_ASKED),
)
async def describe_topic_partitions(
    ctx: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return at most `response_partition_limit` partitions, and the cursor of the next page."""
    await ctx.services.first_metadata()
    state = ctx.services.controller.state
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None else ""
    names = await _from(first, (t.name for t in request.topics) if request.topics else state.topics)
    if cursor is not None and request.topics and cursor.topic_name not in names:
        text = f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {cursor.topic_name}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    if cursor is not None and cursor.partition_index < 0:
        text = f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)
    cap = ctx.services.config.get_int("max.request.partition.size.limit")
    left = max(min(cap, request.response_partition_limit), 1)
    answer = DescribeTopicPartitionsResponse()
    for name in await in_order(names):
        await turn
        if left == 0:
            answer.next_cursor = Cursor(name, 0)
            break
        topic = state.topics.get(name)
        if topic is None:
            if request.topics:
                answer.topics.append(_missing(name))
            continue
        start = cursor.partition_index if cursor is not None and name == first else 0
        stop = min(start + left, len(topic.partitions))
        described = await _describe(topic, start, stop)
        answer.topics.append(described)
        left -= max(stop - start, 0)
        if stop < len(topic.partitions):
            answer.next_cursor = Cursor(name, stop)
            break
    return answer


async def _from(first: str, names: Iterable[str]) -> set[str]:
    """Return the names that are equal to or greater than `first`."""
    found: set[str] = set()
    for name in names:
        if name >= first:
            found.add(name)
        await turn
    return found


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    bad = topic_name_fault(name) is not None
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


async def _describe(topic: TopicState, start: int, stop: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=await each(range(start, stop), lambda i: _partition(i, topic.partitions[i])),
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(index: int, state: PartitionState) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=list(state.offline),
        eligible_leader_replicas=[],
        last_known_elr=[],
    )

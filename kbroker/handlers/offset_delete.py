"""OffsetDelete (key 47), version 0.

Behaviour: deletes positions of a group in topics that it does not consume (GROUP_SUBSCRIBED_TO_TOPIC otherwise). A
group with members that is not a consumer group is NON_EMPTY_GROUP as a whole (KIP-496).
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest, OffsetDeleteResponse, "0")
async def offset_delete(ctx: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Delete a group's positions."""
    state = ctx.services.controller.state
    refused: dict[str, OffsetDeleteResponseTopic] = {}
    known = []
    for topic in request.topics:
        existing = []
        for partition in topic.partitions:
            await turn
            if state.partition(topic.name, partition.partition_index) is not None:
                existing.append(partition)
                continue
            answer = refused.setdefault(topic.name, OffsetDeleteResponseTopic(name=topic.name))
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.partitions.append(
                OffsetDeleteResponsePartition(partition_index=partition.partition_index, error_code=error)
            )
        if existing:
            known.append(OffsetDeleteRequestTopic(name=topic.name, partitions=existing))
        await turn
    request.topics = known
    response = await ctx.services.groups.delete_offsets(request)
    if response.error_code or not refused:
        return response
    for decided in response.topics:
        answered = refused.setdefault(decided.name, decided)
        if answered is not decided:
            answered.partitions += decided.partitions
        await turn
    return OffsetDeleteResponse(topics=list(refused.values()))

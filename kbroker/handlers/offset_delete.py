"""OffsetDelete (key 47), version 0.

Behaviour: deletes positions of a group in topics that it does not consume (GROUP_SUBSCRIBED_TO_TOPIC otherwise); a
group with members that is no consumer group is NON_EMPTY_GROUP as a whole (KIP-496).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kbroker.coordination.then import later
from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest, OffsetDeleteResponse, "0")
def offset_delete(
    ctx: RequestContext, request: OffsetDeleteRequest
) -> Divided[OffsetDeleteResponse | Awaitable[Divided[OffsetDeleteResponse]]]:
    """Delete a group's positions."""
    state = ctx.services.controller.state
    refused: dict[str, OffsetDeleteResponseTopic] = {}
    known = []
    for topic in request.topics:
        existing = []
        for partition in topic.partitions:
            yield
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
        yield
    request.topics = known

    def merge(response: OffsetDeleteResponse) -> Divided[OffsetDeleteResponse]:
        if response.error_code or not refused:
            return response
        for topic in response.topics:
            answered = refused.setdefault(topic.name, topic)
            if answered is not topic:
                answered.partitions += topic.partitions
            yield
        return OffsetDeleteResponse(topics=list(refused.values()))

    decided = yield from ctx.services.groups.delete_offsets(request)
    if isinstance(decided, OffsetDeleteResponse):
        return (yield from merge(decided))
    return later(decided, lambda work: _merged_later(work, merge))


def _merged_later(
    work: Divided[OffsetDeleteResponse], merge: Callable[[OffsetDeleteResponse], Divided[OffsetDeleteResponse]]
) -> Divided[OffsetDeleteResponse]:
    return (yield from merge((yield from work)))

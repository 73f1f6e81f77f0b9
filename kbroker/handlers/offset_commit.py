"""OffsetCommit (key 8), versions 2-10.

Behaviour: a group's positions, accepted from members of the current generation, or from anybody while the group has no
members. Topics and partitions that do not exist are answered here; the rest is the coordinator's.
Version notes: v2-4 carry a retention time of their own; v9 answers GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION;
v10 names topics by id (UNKNOWN_TOPIC_ID).
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.cluster_state import ClusterState
from kbroker.coordination.then import then
from kbroker.group_coordinator.coordinator import commit_error
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE = 10


def _failed(request: OffsetCommitRequest, code: int, _message: str | None) -> OffsetCommitResponse:
    return commit_error(request, ErrorCode(code))


@handles(OffsetCommitRequest, OffsetCommitResponse, "2-10", _failed)
def offset_commit(
    ctx: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
    """Store a group's positions."""
    state = ctx.services.controller.state
    by_id = ctx.version >= TOPIC_IDS_SINCE
    refused: dict[str | bytes, OffsetCommitResponseTopic] = {}
    known = []
    for topic in request.topics:
        code = _resolve(state, topic, by_id)
        count = 0 if code is not ErrorCode.NONE else len(state.topics[topic.name].partitions)
        wrong = [p.partition_index for p in topic.partitions if not 0 <= p.partition_index < count]
        if wrong:
            answer = refused.setdefault(
                topic.topic_id if by_id else topic.name,
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id),
            )
            error = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answer.partitions += [OffsetCommitResponsePartition(partition_index=i, error_code=error) for i in wrong]
            topic.partitions = [p for p in topic.partitions if 0 <= p.partition_index < count]
        if topic.partitions:
            known.append(topic)
    if not known:
        return OffsetCommitResponse(topics=list(refused.values()))
    request.topics = known
    answer_of_groups = ctx.services.groups.commit_offsets(request, version=ctx.version)
    if not refused:
        return answer_of_groups

    def merge(response: OffsetCommitResponse) -> OffsetCommitResponse:
        for topic in response.topics:
            answered = refused.setdefault(topic.topic_id if by_id else topic.name, topic)
            if answered is not topic:
                answered.partitions += topic.partitions
        return OffsetCommitResponse(topics=list(refused.values()))

    return then(answer_of_groups, merge)


def _resolve(state: ClusterState, topic: OffsetCommitRequestTopic, by_id: bool) -> ErrorCode:
    """Fill in the topic's name or id, whichever the request left out."""
    if by_id:
        topic.name = state.topic_names.get(topic.topic_id, "")
        return ErrorCode.NONE if topic.name else ErrorCode.UNKNOWN_TOPIC_ID
    held = state.topics.get(topic.name)
    if held is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic.topic_id = held.topic_id
    return ErrorCode.NONE

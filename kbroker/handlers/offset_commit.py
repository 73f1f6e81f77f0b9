"""OffsetCommit (key 8), versions 2-10.

Behaviour: stores a group's positions, accepted from members of the current generation, or from anybody while the group
has no members. The handler answers missing topics and partitions; the coordinator handles the rest.
Version notes: v2-4 carry a retention time of their own; v9 answers GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION;
v10 names topics by id (UNKNOWN_TOPIC_ID).
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cluster_state import ClusterState
from kbroker.coordination.outcome import answerable
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    TxnOffsetCommitRequestTopic,
)

TOPIC_IDS_SINCE = 10


_failed = mirrored(OffsetCommitResponse)


@handles(OffsetCommitRequest, OffsetCommitResponse, "2-10", _failed)
async def offset_commit(ctx: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
    """Store a group's positions."""
    by_id, groups, controller = ctx.version >= TOPIC_IDS_SINCE, ctx.services.groups, ctx.services.controller
    refused: _Refused = {}
    while True:
        state = controller.state
        await _refuse_unknown(state, request, by_id, refused)
        if not request.topics:
            return OffsetCommitResponse(topics=list(refused.values()))
        try:
            commit = await groups.build_commit(request)
        except ApiError as err:
            return await _merged(request, answerable(err.code), refused, by_id)
        if commit.too_large or are_still_there(request.topics, state, controller.state):
            break
    decided: _Decided = await awaited(groups.commit_offsets(request, commit, version=ctx.version))
    return await _merged(request, decided, refused, by_id)


_Decided = OffsetCommitResponse | ErrorCode
_Refused = dict[str | bytes, OffsetCommitResponseTopic]


def are_still_there(
    asked: Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic], before: ClusterState, now: ClusterState
) -> bool:
    """Return whether no requested topic has been deleted meanwhile: no offset of a deleted topic may be stored."""
    if now.topics is before.topics:
        return True
    return all(
        (topic := now.topics.get(each.name)) is not None and topic.topic_id == before.topics[each.name].topic_id
        for each in asked
    )


async def _refuse_unknown(state: ClusterState, request: OffsetCommitRequest, by_id: bool, refused: _Refused) -> None:
    """Remove missing topics and partitions from a request, and add their results to `refused`."""
    known = []
    for topic in request.topics:
        code = _resolve(state, topic, by_id)
        count = 0 if code is not ErrorCode.NONE else len(state.topics[topic.name].partitions)
        existing, wrong = [], []
        for partition in topic.partitions:
            if 0 <= partition.partition_index < count:
                existing.append(partition)
            else:
                error = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                wrong.append(OffsetCommitResponsePartition(partition.partition_index, error))
            await turn
        if wrong:
            answer = refused.setdefault(
                topic.topic_id if by_id else topic.name,
                OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id),
            )
            answer.partitions += wrong
        if existing:
            topic.partitions = existing
            known.append(topic)
        await turn
    request.topics = known


async def _merged(
    request: OffsetCommitRequest, decided: _Decided, refused: _Refused, by_id: bool
) -> OffsetCommitResponse:
    """Add the coordinator's results to those that were refused here."""
    if not isinstance(decided, OffsetCommitResponse):
        decided = await _failed(request, decided, None)
    if not refused:
        return decided
    for topic in decided.topics:
        answered = refused.setdefault(topic.topic_id if by_id else topic.name, topic)
        if answered is not topic:
            answered.partitions += topic.partitions
        await turn
    return OffsetCommitResponse(topics=list(refused.values()))


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

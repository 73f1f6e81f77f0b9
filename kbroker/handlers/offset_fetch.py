"""OffsetFetch (key 9), versions 1-10.

Behaviour: a group's positions, -1 where there is none; an unknown group or topic has none, which is no error. v2 null
topics ask for all, v7 require_stable makes positions that an open transaction may change UNSTABLE_OFFSET_COMMIT.
What is asked for again is answered again, within a bound (repeated_groups.py).
Version notes: v8 asks for several groups and moves everything, errors included, into `groups` (KIP-709); v9 member id
and epoch concern only groups of KIP-848; v10 names topics by id (UNKNOWN_TOPIC_ID).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from kbroker.cluster_state import ClusterState
from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import MAX_REPEATED_BYTES, as_often
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.wire import ZERO_UUID

BATCHED_SINCE = 8
TOPIC_IDS_SINCE = 10


def _failed(request: OffsetFetchRequest, code: int, _message: str | None) -> OffsetFetchResponse:
    groups = [OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups]
    return OffsetFetchResponse(error_code=code, groups=groups)


@handles(OffsetFetchRequest, OffsetFetchResponse, "1-10", _failed)
def offset_fetch(
    ctx: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Return positions of groups."""
    if ctx.version < BATCHED_SINCE:
        topics = None
        if request.topics is not None:
            topics = [
                OffsetFetchRequestTopics(name=t.name, partition_indexes=t.partition_indexes) for t in request.topics
            ]
        group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
        return then(_fetch(ctx, group, request.require_stable), _of_one)
    version = ctx.version
    asked = [
        (number if group.topics is not None else -1, group.group_id, group.member_id, group.member_epoch)
        for number, group in enumerate(request.groups)
    ]
    groups = dict(zip(asked, request.groups, strict=True))
    answers = [_fetch(ctx, group, request.require_stable) for group in groups.values()]

    def finish(found: list[OffsetFetchResponseGroup]) -> OffsetFetchResponse:
        _bound_metadata(found)
        answered = as_often(
            asked,
            dict(zip(groups, found, strict=True)),
            lambda group: len(encode(OffsetFetchResponse(groups=[group]), version)),
            lambda key: OffsetFetchResponseGroup(group_id=key[1], error_code=ErrorCode.INVALID_REQUEST),
        )
        return OffsetFetchResponse(groups=answered)

    if all(isinstance(answer, OffsetFetchResponseGroup) for answer in answers):
        return finish([a for a in answers if isinstance(a, OffsetFetchResponseGroup)])
    return then(_gather(answers), finish)


async def _gather(
    answers: Sequence[OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup]],
) -> list[OffsetFetchResponseGroup]:
    return [a if isinstance(a, OffsetFetchResponseGroup) else await a for a in answers]


def _bound_metadata(groups: list[OffsetFetchResponseGroup]) -> None:
    """Refuse partitions that are named over and over, once what was committed with them would take too much."""
    found = [(group, topic, p) for group in groups for topic in group.topics for p in topic.partitions if p.metadata]
    if sum(len(partition.metadata or "") for _, _, partition in found) <= MAX_REPEATED_BYTES:
        return
    left = MAX_REPEATED_BYTES
    seen: set[tuple[str, str, int]] = set()
    for group, topic, partition in found:
        key = (group.group_id, topic.name, partition.partition_index)
        if key in seen:
            left -= len(partition.metadata or "")
            if left < 0:
                partition.committed_offset, partition.metadata = -1, ""
                partition.error_code = ErrorCode.INVALID_REQUEST
        seen.add(key)


def _fetch(
    ctx: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup]:
    """Fetch one group's offsets. Topics that no id names are answered behind the others."""
    version, state = ctx.version, ctx.services.controller.state
    if version < TOPIC_IDS_SINCE:
        return ctx.services.groups.fetch_offsets(group, version=version, require_stable=require_stable)
    if group.topics is None:
        answer = ctx.services.groups.fetch_offsets(group, version=version, require_stable=require_stable)
        return then(answer, lambda response: _with_ids(response, state))
    unknown: list[OffsetFetchResponseTopics] = []
    known = []
    for topic in group.topics:
        topic.name = state.topic_names.get(topic.topic_id, "")
        if topic.name:
            known.append(topic)
        else:
            unknown.append(_unknown_id(topic))
    group.topics = known

    def finish(response: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if not response.error_code:
            response.topics += unknown
        return response

    return then(ctx.services.groups.fetch_offsets(group, version=version, require_stable=require_stable), finish)


def _unknown_id(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
            for index in topic.partition_indexes
        ],
    )


def _with_ids(response: OffsetFetchResponseGroup, state: ClusterState) -> OffsetFetchResponseGroup:
    """Name the topics by id; one that no longer exists has none and is left out."""
    for topic in response.topics:
        held = state.topics.get(topic.name)
        topic.topic_id = ZERO_UUID if held is None else held.topic_id
    response.topics = [topic for topic in response.topics if topic.topic_id != ZERO_UUID]
    return response


def _of_one(group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """Return the answer of the versions that ask for one group."""
    _bound_metadata([group])
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=p.partition_index,
                        committed_offset=p.committed_offset,
                        committed_leader_epoch=p.committed_leader_epoch,
                        metadata=p.metadata,
                        error_code=p.error_code,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )

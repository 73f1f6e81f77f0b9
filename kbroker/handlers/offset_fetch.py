"""OffsetFetch (key 9), versions 1-10.

Behaviour: returns a group's positions, -1 if there is none. An unknown group or topic is not an error. Since v2, null
topics request all topics. With require_stable (since v7) the error is UNSTABLE_OFFSET_COMMIT for positions that an open
transaction may change. The response repeats the results of repeated elements, within a limit (groups.py).

Version notes: a v8 request has several groups in `groups`, each with its own topics and its own error (KIP-709); v9 has
a member id and epoch, which only groups of KIP-848 check; v10 names topics by id (UNKNOWN_TOPIC_ID).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kbroker.cluster_state import ClusterState
from kbroker.group_coordinator.coordinator import fetch_error
from kbroker.handlers.groups import MAX_REPEATED_BYTES, paired, with_repeats
from kbroker.handlers.mirrored_errors import failed
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited, each, every, turn
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
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
_GROUP_ERROR_SINCE = 2


async def _failed(request: OffsetFetchRequest, code: int, _message: str | None) -> OffsetFetchResponse:
    groups = await each(
        request.groups, lambda group: OffsetFetchResponseGroup(group_id=group.group_id, error_code=code)
    )
    return OffsetFetchResponse(error_code=code, groups=groups)


_Begun = tuple[
    OffsetFetchResponseGroup | Awaitable[OffsetFetchResponseGroup],
    Callable[[OffsetFetchResponseGroup], OffsetFetchResponseGroup],
]
"""A group's answer, or an awaitable of the answer, and the function that completes it."""
_Asked = tuple[int, str, str | None, int]
"""The identity of a group in a request: its position (if the group names topics), group id, member id and epoch."""


@handles(OffsetFetchRequest, OffsetFetchResponse, "1-10", _failed)
async def offset_fetch(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Return positions of groups."""
    if ctx.version < BATCHED_SINCE:
        return await _fetch_one(ctx, request)
    return await _fetch_several(ctx, request)


async def _fetch_one(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    version, topics = ctx.version, None
    if request.topics is not None:
        topics = await each(
            request.topics,
            lambda topic: OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes),
        )
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    found = await _finished(await _begin(ctx, group, request.require_stable))
    return await _of_one(found, group, version)


async def _fetch_several(ctx: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    version = ctx.version
    asked: list[_Asked] = []
    groups: dict[_Asked, OffsetFetchRequestGroup] = {}
    for number, group in enumerate(request.groups):
        place = number if group.topics is not None else -1
        asked.append((place, group.group_id, group.member_id, group.member_epoch))
        groups[asked[-1]] = group
        await turn
    begun = await every(groups.values(), lambda group: _begin(ctx, group, request.require_stable))
    found = await every(begun, _finished)
    await _bound_metadata(found)
    if len(found) == len(asked):
        return OffsetFetchResponse(groups=found)
    answered = await with_repeats(
        asked,
        await paired(groups, found),
        lambda group: len(encode(OffsetFetchResponse(groups=[group]), version)),
        lambda key: OffsetFetchResponseGroup(group_id=key[1], error_code=ErrorCode.INVALID_REQUEST),
    )
    return OffsetFetchResponse(groups=answered)


async def _bound_metadata(groups: Sequence[OffsetFetchResponseGroup]) -> None:
    """Refuse repeated partitions once their commit metadata would make the response too large."""
    size = 0
    for group in groups:
        for topic in group.topics:
            for partition in topic.partitions:
                size += len(partition.metadata or "")
                await turn
            await turn
        await turn
    if size <= MAX_REPEATED_BYTES:
        return
    left = MAX_REPEATED_BYTES
    seen: set[tuple[str, str, int]] = set()
    for group in groups:
        for topic in group.topics:
            for partition in topic.partitions:
                await turn
                if not partition.metadata:
                    continue
                key = (group.group_id, topic.name, partition.partition_index)
                if key in seen:
                    left -= len(partition.metadata)
                    if left < 0:
                        partition.committed_offset, partition.metadata = -1, ""
                        partition.error_code = ErrorCode.INVALID_REQUEST
                seen.add(key)


async def _begin(ctx: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool) -> _Begun:
    """Begin to fetch one group's offsets. Results for unknown topic ids are last."""
    version, state, groups = ctx.version, ctx.services.controller.state, ctx.services.groups
    if version < TOPIC_IDS_SINCE:
        return await groups.fetch_offsets(group, require_stable=require_stable), lambda response: response
    if group.topics is None:
        found = await groups.fetch_offsets(group, require_stable=require_stable)
        return found, lambda response: _with_ids(response, state)
    unknown: list[OffsetFetchResponseTopics] = []
    known = []
    for topic in group.topics:
        topic.name = state.topic_names.get(topic.topic_id, "")
        if topic.name:
            known.append(topic)
        else:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            unknown.append(await failed(OffsetFetchResponseTopics, topic, code, committed_offset=-1, metadata=""))
        await turn
    group.topics = known

    def finish(response: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if not response.error_code:
            response.topics += unknown
        return response

    return await groups.fetch_offsets(group, require_stable=require_stable), finish


async def _finished(begun: _Begun) -> OffsetFetchResponseGroup:
    found, finish = begun
    return finish(await awaited(found))


def _with_ids(response: OffsetFetchResponseGroup, state: ClusterState) -> OffsetFetchResponseGroup:
    """Add the topics' ids, and omit topics that no longer exist."""
    for topic in response.topics:
        held = state.topics.get(topic.name)
        topic.topic_id = ZERO_UUID if held is None else held.topic_id
    response.topics = [topic for topic in response.topics if topic.topic_id != ZERO_UUID]
    return response


async def _of_one(group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, version: int) -> OffsetFetchResponse:
    """Return the response in the versions with a single group. In version 1 only partitions have an error."""
    if group.error_code and version < _GROUP_ERROR_SINCE:
        group = await fetch_error(asked, group.error_code)
    await _bound_metadata([group])

    async def renamed(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
        partitions = await each(topic.partitions, _partition)
        return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)

    return OffsetFetchResponse(error_code=group.error_code, topics=await every(group.topics, renamed))


def _partition(p: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=p.partition_index,
        committed_offset=p.committed_offset,
        committed_leader_epoch=p.committed_leader_epoch,
        metadata=p.metadata,
        error_code=p.error_code,
    )

"""Guards of the APIs about groups and their offsets.

Owns the responses about groups that a client may not describe, and about offsets of topics that the client may not
describe.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from kbroker.group_coordinator.topologies.topology import topics_in
from kbroker.handlers.authorized.guard import (
    Verdict,
    name_of,
    partly,
    refuse_all,
    rights_of,
    with_field,
)
from kbroker.handlers.groups import NULLABLE_NAME_SINCE, PROTOCOL_REQUIRED_SINCE
from kbroker.handlers.groups import consumer_group_heartbeat as heartbeat_handler
from kbroker.handlers.mirrored_errors import failed
from kbroker.handlers.offset_fetch import BATCHED_SINCE
from kbroker.handlers.registry import Handler, RequestContext
from kbroker.handlers.share_groups import is_member_id
from kbroker.handlers.streams_groups import streams_group_heartbeat as streams_heartbeat_handler
from kbroker.long_work import awaited, every, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
)
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupHeartbeatRequest,
)
from kbroker.protocol.messages.streams_groups import DescribedStreamsGroup, StreamsGroupHeartbeatRequest
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

GROUP, TOPIC, TXN = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_KINDS = {0: (GROUP, _REFUSED), 1: (TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)}
_SHARE = 2
_COORDINATORS_SINCE = 4
_GROUP_ERROR_SINCE = 2


def group_right(operation: Operation) -> Verdict:
    """Check a right on each named group."""
    return lambda _ctx, rights, name: 0 if rights.may(operation, GROUP, name) else _REFUSED


def may_use(rights: Rights, operation: Operation, group_id: str) -> int:
    """Return the error if a client has no right on a group, else 0."""
    return 0 if rights.may(operation, GROUP, group_id) else _REFUSED


def join_group(handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read."""

    def guarded(ctx: RequestContext, request: JoinGroupRequest) -> Any:
        if not rights_of(ctx).may(Operation.READ, GROUP, request.group_id):
            name = None if ctx.version >= NULLABLE_NAME_SINCE else ""
            return JoinGroupResponse(error_code=_REFUSED, protocol_name=name)
        return handler(ctx, request)

    return guarded


def sync_group(handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read. A request without a protocol type or name is refused before this check, as in Kafka."""

    def guarded(ctx: RequestContext, request: SyncGroupRequest) -> Any:
        is_whole = request.protocol_type is not None and request.protocol_name is not None
        if ctx.version >= PROTOCOL_REQUIRED_SINCE and not is_whole:
            return handler(ctx, request)
        if not rights_of(ctx).may(Operation.READ, GROUP, request.group_id):
            raise refuse_all(GROUP)
        return handler(ctx, request)

    return guarded


def may_describe(_ctx: RequestContext, rights: Rights, group: Any) -> bool:
    """Whether the client may describe a listed group: it needs Cluster:Describe, or Group:Describe for the group."""
    return rights.on_cluster(Operation.DESCRIBE, logs=False) or rights.may(
        Operation.DESCRIBE, GROUP, group.group_id, logs=False
    )


def with_operations(handler: Handler, _response: type[Any]) -> Handler:
    """Add the client's permitted operations to the described groups."""

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        if not request.include_authorized_operations:
            return answer
        rights = rights_of(ctx)
        for group in answer.groups:
            if not group.error_code:
                group.authorized_operations = rights.operations(GROUP, group.group_id)
            await turn
        return answer

    return guarded


def rereads_for_brokers(handler: Handler, _response: type[Any]) -> Handler:
    """Answer rereads (clients that fetch the same record again and again) only for other brokers."""

    def guarded(ctx: RequestContext, request: DescribeGroupsRequest) -> Any:
        if request.wants_rereads and not rights_of(ctx).on_cluster(Operation.CLUSTER_ACTION):
            request = with_field(request, "wants_rereads", value=False)
        return handler(ctx, request)

    return guarded


def without_hidden_topics(handler: Handler, _response: type[Any]) -> Handler:
    """Refuse to describe a consumer or share group if the client may not describe all topics of its members."""

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        rights = rights_of(ctx)
        for place, group in enumerate(answer.groups):
            hides = False
            for member in group.members:
                for assignment in (member.assignment, getattr(member, "target_assignment", None)):
                    for topic in assignment.topic_partitions if assignment is not None else ():
                        hides = hides or not rights.may(Operation.DESCRIBE, TOPIC, topic.topic_name)
                        await turn
                await turn
            if hides:
                text = "The group has described topic(s) that the client is not authorized to describe."
                answer.groups[place] = type(group)(group_id=group.group_id, error_code=_NO_TOPIC, error_message=text)
            await turn
        return answer

    return guarded


def consumer_group_heartbeat(_handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read and Topic:Describe. A pattern matches only those topics that the member may describe."""

    async def guarded(ctx: RequestContext, request: ConsumerGroupHeartbeatRequest) -> Any:
        rights = rights_of(ctx)
        if not rights.may(Operation.READ, GROUP, request.group_id):
            raise refuse_all(GROUP)
        for name in request.subscribed_topic_names or ():
            if not rights.may(Operation.DESCRIBE, TOPIC, name):
                raise refuse_all(TOPIC)
            await turn

        def may_see(topic: str) -> bool:
            return rights.may(Operation.DESCRIBE, TOPIC, topic, logs=False)

        return await awaited(heartbeat_handler(ctx, request, may_see=may_see))  # type: ignore[call-arg]

    return guarded


def streams_group_heartbeat(_handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read, and Topic:Describe for the topology; internal topics are created with the member's rights."""

    async def guarded(ctx: RequestContext, request: StreamsGroupHeartbeatRequest) -> Any:
        rights = rights_of(ctx)
        if not rights.may(Operation.READ, GROUP, request.group_id):
            raise refuse_all(GROUP)
        for name in () if request.topology is None else await topics_in(request.topology):
            if not rights.may(Operation.DESCRIBE, TOPIC, name):
                raise refuse_all(TOPIC)
            await turn

        def may_create(topic: str) -> bool:
            on_cluster = rights.on_cluster(Operation.CREATE, logs=False)
            return on_cluster or rights.may(Operation.CREATE, TOPIC, topic)

        return await awaited(streams_heartbeat_handler(ctx, request, may_create=may_create))  # type: ignore[call-arg]

    return guarded


def share_group_heartbeat(handler: Handler, _response: type[Any]) -> Handler:
    """Require Group:Read, and Topic:Describe for all subscribed topics if the member id is valid."""

    async def guarded(ctx: RequestContext, request: ShareGroupHeartbeatRequest) -> Any:
        rights = rights_of(ctx)
        if not rights.may(Operation.READ, GROUP, request.group_id):
            raise refuse_all(GROUP)
        if is_member_id(request.member_id):
            for name in request.subscribed_topic_names or ():
                if not rights.may(Operation.DESCRIBE, TOPIC, name):
                    raise ApiError(_NO_TOPIC)
                await turn
        return await awaited(handler(ctx, request))

    return guarded


def without_hidden_topologies(handler: Handler, _response: type[Any]) -> Handler:
    """Refuse to describe a streams group if the client may not describe all topics of its topology."""

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        rights = rights_of(ctx)
        for place, group in enumerate(answer.groups):
            hides = False
            for name in () if group.topology is None else await topics_in(group.topology):
                hides = hides or not rights.may(Operation.DESCRIBE, TOPIC, name)
                await turn
            if hides:
                text = "The described group uses topics that the client is not authorized to describe."
                refused = DescribedStreamsGroup(group_id=group.group_id, error_code=_NO_TOPIC, error_message=text)
                answer.groups[place] = refused
            await turn
        return answer

    return guarded


def describe_share_group_offsets(handler: Handler, _response: type[Any]) -> Handler:
    """Require Topic:Describe.

    Forbidden topics that the request names get an error. A response about all topics omits forbidden topics.
    """

    async def guarded(ctx: RequestContext, request: DescribeShareGroupOffsetsRequest) -> Any:
        rights = rights_of(ctx)
        parts: list[Any] = []
        hidden: list[list[Any]] = []
        for group in request.groups:
            seen: list[Any] | None = None if group.topics is None else []
            unseen: list[Any] = []
            for topic in group.topics or ():
                allowed = rights.may(Operation.DESCRIBE, TOPIC, topic.topic_name)
                (unseen if not allowed or seen is None else seen).append(topic)
                await turn
            parts.append(with_field(group, "topics", seen) if unseen else group)
            hidden.append(unseen)
        answer = await awaited(handler(ctx, with_field(request, "groups", parts)))
        for asked, unseen, found in zip(request.groups, hidden, answer.groups, strict=True):
            if asked.topics is None:
                kept = []
                for topic in found.topics:
                    if rights.may(Operation.DESCRIBE, TOPIC, topic.topic_name):
                        kept.append(topic)
                    await turn
                found.topics = kept
            elif not found.error_code:
                for topic in unseen:
                    found.topics.append(await _hidden_offsets(topic))
        return answer

    return guarded


async def _hidden_offsets(topic: Any) -> DescribeShareGroupOffsetsResponseTopic:
    text = DEFAULT_MESSAGES.get(_NO_TOPIC)
    hidden = DescribeShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
    for index in topic.partitions:
        hidden.partitions.append(
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=index, start_offset=-1, error_code=_NO_TOPIC, error_message=text
            )
        )
        await turn
    return hidden


def with_topic_ids(handler: Handler, _response: type[Any]) -> Handler:
    """Add the ids of existing topics to the response, including the ids of refused topics.

    Apache Kafka 4.4.0 does this in AlterShareGroupOffsets.
    """

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        for topic in answer.responses:
            held = ctx.services.controller.state.topics.get(topic.topic_name)
            if held is not None:
                topic.topic_id = held.topic_id
            await turn
        return answer

    return guarded


def find_coordinator(handler: Handler, response: type[Any]) -> Handler:
    """Require Group:Describe or TransactionalId:Describe; for share groups require Cluster:ClusterAction."""
    several = {
        key_type: partly("coordinator_keys", _named_right(*kind), node_id=-1, port=-1)(handler, response)
        for key_type, kind in _KINDS.items()
    }

    def guarded(ctx: RequestContext, request: FindCoordinatorRequest) -> Any:
        rights, kind = rights_of(ctx), _KINDS.get(request.key_type)
        if request.key_type == _SHARE and not rights.on_cluster(Operation.CLUSTER_ACTION):
            raise refuse_all(ResourceType.CLUSTER)
        if kind is None:
            return handler(ctx, request)
        if ctx.version >= _COORDINATORS_SINCE:
            return several[request.key_type](ctx, request)
        if not rights.may(Operation.DESCRIBE, kind[0], request.key):
            raise ApiError(kind[1], DEFAULT_MESSAGES.get(kind[1]))
        return handler(ctx, request)

    return guarded


def _named_right(kind: ResourceType, code: ErrorCode) -> Verdict:
    return lambda _ctx, rights, name: 0 if rights.may(Operation.DESCRIBE, kind, name) else code


def offset_fetch(handler: Handler, response: type[Any]) -> Handler:
    """Require Group:Describe and Topic:Describe. The response to a request for all topics omits forbidden topics."""

    def guarded(ctx: RequestContext, request: OffsetFetchRequest) -> Coroutine[Any, Any, Any]:
        return several(ctx, request) if ctx.version >= BATCHED_SINCE else one(ctx, request)

    async def several(ctx: RequestContext, request: OffsetFetchRequest) -> Any:
        rights = rights_of(ctx)
        allowed: list[OffsetFetchRequestGroup] = []
        hidden: list[list[Any] | None] = []
        for group in request.groups:
            if not rights.may(Operation.DESCRIBE, GROUP, group.group_id):
                hidden.append(None)
            else:
                seen, others = await _parted(ctx, rights, group.topics)
                allowed.append(with_field(group, "topics", seen) if others else group)
                hidden.append(others)
            await turn
        answer = response()
        if allowed:
            answer = await awaited(handler(ctx, with_field(request, "groups", allowed)))
        found = iter(answer.groups)
        merged = []
        for asked, unseen in zip(request.groups, hidden, strict=True):
            if unseen is None:
                merged.append(OffsetFetchResponseGroup(group_id=asked.group_id, error_code=_REFUSED))
                continue
            group_answer = next(found)
            if asked.topics is None:
                group_answer.topics = await _seen(ctx, rights, group_answer.topics)
            elif not group_answer.error_code:
                for topic in unseen:
                    group_answer.topics.append(await _unseen(OffsetFetchResponseTopics, topic, _NO_TOPIC))
            merged.append(group_answer)
            await turn
        answer.groups = merged
        return answer

    async def one(ctx: RequestContext, request: OffsetFetchRequest) -> Any:
        rights = rights_of(ctx)
        if not rights.may(Operation.DESCRIBE, GROUP, request.group_id):
            asked = request.topics or () if ctx.version < _GROUP_ERROR_SINCE else ()
            topics = await every(asked, lambda topic: _unseen(OffsetFetchResponseTopic, topic, _REFUSED))
            return response(error_code=_REFUSED, topics=topics)
        seen, unseen = await _parted(ctx, rights, request.topics)
        part = with_field(request, "topics", seen) if unseen else request
        answer = await awaited(handler(ctx, part))
        if request.topics is None:
            answer.topics = await _seen(ctx, rights, answer.topics)
        elif not answer.error_code:
            for topic in unseen:
                answer.topics.append(await _unseen(OffsetFetchResponseTopic, topic, _NO_TOPIC))
        return answer

    return guarded


async def _parted(ctx: RequestContext, rights: Rights, topics: Iterable[Any] | None) -> tuple[Any, list[Any]]:
    """Return the topics that the client may describe, and the other topics. None (all topics) stays None."""
    if topics is None:
        return None, []
    seen: list[Any] = []
    unseen: list[Any] = []
    for topic in topics:
        name = topic.name or name_of(ctx, topic)
        (seen if name is None or rights.may(Operation.DESCRIBE, TOPIC, name) else unseen).append(topic)
        await turn
    return seen, unseen


async def _seen(ctx: RequestContext, rights: Rights, topics: Iterable[Any]) -> list[Any]:
    kept = []
    for topic in topics:
        name = topic.name or name_of(ctx, topic)
        if name is not None and rights.may(Operation.DESCRIBE, TOPIC, name):
            kept.append(topic)
        await turn
    return kept


def _unseen(answer: type[Any], topic: Any, code: int) -> Coroutine[Any, Any, Any]:
    return failed(answer, topic, code, committed_offset=-1, metadata="")

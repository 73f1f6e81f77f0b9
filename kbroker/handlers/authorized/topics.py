"""Guards of Metadata, DescribeTopicPartitions, and of the APIs that create, grow and delete topics.

Owns the responses about topics that a client may not describe. If a request names such a topic, the error is the same
whether the topic exists or not. If a request asks for all topics, the response omits such topics.
"""

from __future__ import annotations

from typing import Any

from kbroker.handlers.authorized.guard import name_of, rights_of, with_field
from kbroker.handlers.groups import counted
from kbroker.handlers.metadata import NOT_ASKED
from kbroker.handlers.registry import Handler, RequestContext
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ErrorCode
from kbroker.protocol.messages.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
    TopicRequest,
)
from kbroker.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kbroker.protocol.wire import ZERO_UUID
from kbroker.security.authorizer.acls import CLUSTER_NAME, Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights
from kbroker.topic_names import INTERNAL_TOPICS

TOPIC = ResourceType.TOPIC
_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_CLUSTER_OPERATIONS_IN = range(8, 11)
_FIRST_ID_VERSION = 12
_METADATA_TOPIC = "__cluster_metadata"


def metadata(handler: Handler, _response: type[Any]) -> Handler:
    """Require Topic:Describe. To create a missing topic, a client needs Cluster:Create or Topic:Create."""

    async def guarded(ctx: RequestContext, request: MetadataRequest) -> Any:
        await ctx.services.first_metadata()  # after this wait, the handler sees the same state as this guard
        rights, version = rights_of(ctx), ctx.version
        is_all = request.topics is None or (version == 0 and not request.topics)
        refused: list[MetadataResponseTopic] = []
        part, by_id = request, False
        if not is_all:
            allowed = await _describable(ctx, rights, request, refused)
            by_id = bool(allowed) and allowed[0].topic_id != ZERO_UUID  # a request has only ids, or only names
            part = with_field(request, "topics", allowed)
        answer = await awaited(handler(ctx, part))
        found, kept = answer.topics if is_all or part.topics else [], []
        for topic in found:
            # Check the topics of the response again: an id that was unknown before may have become known.
            if topic.name is None or rights.may(Operation.DESCRIBE, TOPIC, topic.name, logs=False):
                kept.append(topic)
                if request.include_topic_authorized_operations and topic.name is not None:
                    topic.topic_authorized_operations = rights.operations(TOPIC, topic.name)
            elif not is_all:
                refused.append(_unseen(None, topic.topic_id) if by_id else _unseen(topic.name, ZERO_UUID))
            await turn
        answer.topics = kept + refused
        if request.include_cluster_authorized_operations and version in _CLUSTER_OPERATIONS_IN:
            answer.cluster_authorized_operations = cluster_operations(rights)
        return answer

    return guarded


async def _describable(
    ctx: RequestContext, rights: Rights, request: MetadataRequest, refused: list[MetadataResponseTopic]
) -> list[MetadataRequestTopic]:
    """Return the topics of a request that the client may describe; add the others to `refused`, without duplicates."""
    allowed: list[MetadataRequestTopic] = []
    seen: dict[Any, None] = {}
    creates = request.allow_auto_topic_creation and ctx.services.config.get_bool("auto.create.topics.enable")
    by_id = any(topic.topic_id != ZERO_UUID for topic in request.topics or ())
    for asked in request.topics or ():
        await turn
        if by_id and ctx.version >= _FIRST_ID_VERSION and asked.topic_id == ZERO_UUID:
            continue  # a request with ids ignores names, but without ids the handler would use the names
        name = name_of(ctx, asked) if by_id else asked.name
        if not name or (by_id and ctx.version < _FIRST_ID_VERSION):
            allowed.append(asked)  # nothing to hide, or the handler refuses the whole request
            continue
        if not rights.may(Operation.DESCRIBE, TOPIC, name):
            answer = _unseen(None if by_id else name, asked.topic_id if by_id else ZERO_UUID)
        elif creates and not by_id and name not in ctx.services.controller.state.topics and not _creates(rights, name):
            answer = _unseen(name, ZERO_UUID)
            answer.is_internal = name in INTERNAL_TOPICS
        else:
            allowed.append(asked)
            continue
        if (answer.name, answer.topic_id) not in seen:
            seen[answer.name, answer.topic_id] = None
            refused.append(answer)
    return allowed


def _unseen(name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=_REFUSED, name=name, topic_id=topic_id, topic_authorized_operations=NOT_ASKED
    )


def _creates(rights: Rights, name: str) -> bool:
    return rights.on_cluster(Operation.CREATE, logs=False) or rights.may(Operation.CREATE, TOPIC, name)


def cluster_operations(rights: Rights) -> int:
    """Return the permitted operations on the cluster, as bits; 0 if the client may not describe it."""
    if not rights.on_cluster(Operation.DESCRIBE):
        return 0
    return rights.operations(ResourceType.CLUSTER, CLUSTER_NAME)


def describe_cluster(handler: Handler, _response: type[Any]) -> Handler:
    """Require no right. Return the permitted operations on the cluster only if the client has Cluster:Describe."""

    async def guarded(ctx: RequestContext, request: Any) -> Any:
        answer = await awaited(handler(ctx, request))
        if request.include_cluster_authorized_operations and not answer.error_code:
            answer.cluster_authorized_operations = cluster_operations(rights_of(ctx))
        return answer

    return guarded


def describe_topic_partitions(handler: Handler, response: type[Any]) -> Handler:
    """Require Topic:Describe. Pages contain only visible topics, so that a cursor does not reveal other topics."""

    async def guarded(ctx: RequestContext, request: DescribeTopicPartitionsRequest) -> Any:
        await ctx.services.first_metadata()
        rights, is_all = rights_of(ctx), not request.topics
        cursor = request.cursor
        if cursor is not None and (cursor.partition_index < 0 or not (is_all or _has(request, cursor.topic_name))):
            return await awaited(handler(ctx, request))  # the handler refuses such a cursor
        begin = "" if cursor is None else cursor.topic_name
        names = [each.name for each in request.topics] if not is_all else list(ctx.services.controller.state.topics)
        allowed: dict[str, None] = {}
        refused: dict[str, None] = {}
        for name in names:
            if name >= begin:
                seen = rights.may(Operation.DESCRIBE, TOPIC, name, logs=not is_all)
                (allowed if seen else refused)[name] = None
            await turn
        answer = response()
        if allowed:
            part = with_field(request, "topics", [TopicRequest(name) for name in allowed])
            if begin not in allowed:
                part.cursor = None
            answer = await awaited(handler(ctx, part))
        for topic in answer.topics:
            topic.topic_authorized_operations = rights.operations(TOPIC, topic.name)
            await turn
        for name in refused if not is_all else ():
            unseen = DescribeTopicPartitionsResponseTopic(
                error_code=_REFUSED, name=name, topic_id=ZERO_UUID, topic_authorized_operations=NOT_ASKED
            )
            answer.topics.append(unseen)
            await turn
        return answer

    return guarded


def _has(request: DescribeTopicPartitionsRequest, name: str) -> bool:
    return any(each.name == name for each in request.topics)


def create_topics(handler: Handler, _response: type[Any]) -> Handler:
    """Require Cluster:Create or Topic:Create. Return configs only if the client has Topic:DescribeConfigs."""

    async def guarded(ctx: RequestContext, request: CreateTopicsRequest) -> Any:
        rights = rights_of(ctx)
        may_all = rights.on_cluster(Operation.CREATE, logs=False)
        counts = await counted(topic.name for topic in request.topics)
        allowed, refused = [], []
        for topic in request.topics:
            name = topic.name
            # Leave some names to the handler, which refuses them itself: repeated names, and the name of Kafka's
            # metadata topic.
            if may_all or counts[name] > 1 or name == _METADATA_TOPIC or rights.may(Operation.CREATE, TOPIC, name):
                allowed.append(topic)
            else:
                refused.append(name)
            await turn
        answer = await awaited(handler(ctx, with_field(request, "topics", allowed)))
        for result in answer.topics:
            if not result.error_code and not rights.may(Operation.DESCRIBE_CONFIGS, TOPIC, result.name, logs=False):
                result.topic_config_error_code = _REFUSED
                result.configs, result.num_partitions, result.replication_factor = [], -1, -1
            await turn
        for name in refused:
            answer.topics.append(
                CreatableTopicResult(name=name, error_code=_REFUSED, error_message="Authorization failed.", configs=[])
            )
            await turn
        return answer

    return guarded


def create_partitions(handler: Handler, _response: type[Any]) -> Handler:
    """Require Topic:Alter."""

    async def guarded(ctx: RequestContext, request: CreatePartitionsRequest) -> Any:
        rights = rights_of(ctx)
        counts = await counted(topic.name for topic in request.topics)
        allowed, refused = [], []
        for topic in request.topics:
            if counts[topic.name] > 1 or rights.may(Operation.ALTER, TOPIC, topic.name):
                allowed.append(topic)
            else:
                refused.append(topic.name)
            await turn
        answer = await awaited(handler(ctx, with_field(request, "topics", allowed)))
        for name in refused:
            answer.results.append(CreatePartitionsTopicResult(name=name, error_code=_REFUSED))
            await turn
        return answer

    return guarded


def delete_topics(handler: Handler, _response: type[Any]) -> Handler:
    """Require Cluster:Delete or Topic:Delete. The response hides topics that the client may not describe."""

    async def guarded(ctx: RequestContext, request: DeleteTopicsRequest) -> Any:
        rights = rights_of(ctx)
        if rights.on_cluster(Operation.DELETE, logs=False):
            return await awaited(handler(ctx, request))
        named = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names]
        counts = await counted((each.name, each.topic_id) for each in (*named, *request.topics))
        names, topics, refused = [], [], []
        for state in (*named, *request.topics):
            result = None if counts[state.name, state.topic_id] > 1 else _undeletable(ctx, rights, state)
            if result is not None:
                refused.append(result)
            elif ctx.version < 6:
                names.append(state.name or "")
            else:
                topics.append(state)
            await turn
        part = with_field(with_field(request, "topics", topics), "topic_names", names)
        answer = await awaited(handler(ctx, part))
        answer.responses += refused
        return answer

    return guarded


def _undeletable(ctx: RequestContext, rights: Rights, state: DeleteTopicState) -> DeletableTopicResult | None:
    """Return the error if the client must not delete a topic that the request names once, by name or id; else None."""
    known = ctx.services.controller.state
    if state.topic_id != ZERO_UUID:
        if state.name is not None:
            return None  # the handler refuses it
        name = known.topic_names.get(state.topic_id)
        if name is None:
            return _undeleted(None, state.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
        if rights.may(Operation.DELETE, TOPIC, name):
            return None
        shown = name if rights.may(Operation.DESCRIBE, TOPIC, name) else None
        return _undeleted(shown, state.topic_id)
    if state.name is None:
        return None
    if not rights.may(Operation.DESCRIBE, TOPIC, state.name):
        return _undeleted(state.name, ZERO_UUID)
    if rights.may(Operation.DELETE, TOPIC, state.name, logs=state.name in known.topics):
        return None
    if state.name in known.topics:
        return _undeleted(state.name, ZERO_UUID)
    # Respond here, because the topic may exist by the time the handler looks it up.
    return _undeleted(state.name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _undeleted(name: str | None, topic_id: bytes, code: ErrorCode = _REFUSED) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=DEFAULT_MESSAGES.get(code))

"""DeleteTopics (key 20), versions 1-6: delete topics by name or, from v6, by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC, ClusterState
from kbroker.handlers.metering import Metering
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.remote_rules import check_names_no_segments
from kbroker.long_work import each, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kbroker.protocol.wire import ZERO_UUID

_FIRST_DISABLED_VERSION = 3
_FIRST_STRICT_VERSION = 5
"""The first version in which a mutation quota refuses a deletion (KIP-599)."""
_Key = TypeVar("_Key", str, bytes)

MAX_TOPICS = 10_000
"""The maximum number of topics in one request, as in Kafka's controller (QuorumController.MAX_RECORDS_PER_USER_OP)."""


async def _on_error(request: DeleteTopicsRequest, code: int, message: str | None) -> DeleteTopicsResponse:
    named = await each(request.topic_names, lambda name: _result(name, ZERO_UUID, code, message))
    both = await each(request.topics, lambda topic: _result(topic.name, topic.topic_id, code, message))
    return DeleteTopicsResponse(responses=named + both)


def _result(name: str | None, topic_id: bytes, code: int, message: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


@handles(DeleteTopicsRequest, DeleteTopicsResponse, "1-6", _on_error)
async def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Sort the request into names and ids, refuse ambiguous entries, and delete the other topics in pieces."""
    began_ms = ctx.services.clock.monotonic_ms()
    ctx.services.controller.check_is_controller()
    if not ctx.services.config.get_bool("delete.topic.enable"):
        if ctx.version < _FIRST_DISABLED_VERSION:
            raise ApiError(ErrorCode.INVALID_REQUEST, "This version does not support topic deletion.")
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
    results: list[DeletableTopicResult] = []
    names, ids = await _sort(request, results)
    deletable = await _found(ctx.services.controller.state, names, ids, results)
    deletable = _without_names_of_segments(ctx, deletable, results)
    if len(deletable) > MAX_TOPICS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    if ctx.metering is not None:
        deletable = await _within_quota(ctx, ctx.metering, deletable, results)
    left_ms = ctx.services.time_left(request.timeout_ms, began_ms)
    refused = await ctx.services.controller.delete_in_pieces(deletable, left_ms)
    for topic_id, name in deletable.items():
        why = refused.get(topic_id)
        code, text = (ErrorCode.NONE, None) if why is None else (why.code, why.message)
        results.append(_result(name, topic_id, code, text))
        await turn
    return await ctx.services.in_effect(DeleteTopicsResponse(responses=results))


def _without_names_of_segments(
    ctx: RequestContext, deletable: dict[bytes, str], results: list[DeletableTopicResult]
) -> dict[bytes, str]:
    """Refuse to delete the topic that names all remote segments, if it must stay. Return the other topics."""
    named = ctx.services.controller.state.topics.get(REMOTE_LOG_METADATA_TOPIC)
    if named is not None and named.topic_id in deletable:
        try:
            check_names_no_segments(named.name, is_tiered=ctx.services.tiers is not None)
        except ApiError as error:
            results.append(_result(named.name, named.topic_id, error.code, error.message))
            del deletable[named.topic_id]
    return deletable


async def _within_quota(
    ctx: RequestContext, metering: Metering, deletable: Mapping[bytes, str], results: list[DeletableTopicResult]
) -> dict[bytes, str]:
    """Return the topics that the client's mutation quota allows to delete, and add results for the others."""
    allowed = {}
    for topic_id, name in deletable.items():
        topic = ctx.services.controller.state.topics.get(name)
        try:
            metering.mutate(len(topic.partitions) if topic else 0, strict=ctx.version >= _FIRST_STRICT_VERSION)
            allowed[topic_id] = name
        except ApiError as error:
            results.append(_result(name, topic_id, error.code, error.message))
        await turn
    return allowed


async def _found(
    state: ClusterState, names: Iterable[str], ids: Iterable[bytes], results: list[DeletableTopicResult]
) -> dict[bytes, str]:
    """Return the topics to delete, and add results for the topics that cannot be deleted."""
    deletable: dict[bytes, str] = {}
    for topic_id in ids:
        known = state.topic_names.get(topic_id)
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(_result(None, topic_id, code, DEFAULT_MESSAGES[code]))
        else:
            deletable[topic_id] = known
        await turn
    for name in names:
        topic = state.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(_result(name, ZERO_UUID, code, DEFAULT_MESSAGES[code]))
        elif topic.topic_id in deletable:
            del deletable[topic.topic_id]
            text = "The provided topic name maps to an ID that was already supplied."
            results.append(_result(name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
        else:
            deletable[topic.topic_id] = name
        await turn
    return deletable


async def _sort(request: DeleteTopicsRequest, refused: list[DeletableTopicResult]) -> tuple[list[str], list[bytes]]:
    """Return the names and the ids that occur once, and add results for repeated names and ids."""
    names: dict[str, int] = {}
    ids: dict[bytes, int] = {}
    for name in request.topic_names:
        names[name] = names.get(name, 0) + 1
        await turn
    for topic in request.topics:
        if topic.name is not None and topic.topic_id != ZERO_UUID:
            text = "You may not specify both topic name and topic id."
            refused.append(_result(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
        elif topic.name is not None:
            names[topic.name] = names.get(topic.name, 0) + 1
        elif topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = ids.get(topic.topic_id, 0) + 1
        else:
            text = "Neither topic name nor id were specified."
            refused.append(_result(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, text))
        await turn
    code = ErrorCode.INVALID_REQUEST
    once = await _once(names, lambda name: refused.append(_result(name, ZERO_UUID, code, "Duplicate topic name.")))
    by_id = await _once(ids, lambda each: refused.append(_result(None, each, code, "Duplicate topic id.")))
    return once, by_id


async def _once(counts: Mapping[_Key, int], refuse: Callable[[_Key], None]) -> list[_Key]:
    """Return the keys that occur once, and refuse repeated keys."""
    once = []
    for key, count in counts.items():
        if count == 1:
            once.append(key)
        else:
            refuse(key)
        await turn
    return once

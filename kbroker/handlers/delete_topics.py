"""DeleteTopics (key 20), versions 1-6: delete topics by name or, from v6, by id."""

from __future__ import annotations

from collections import Counter

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kbroker.protocol.wire import ZERO_UUID

_FIRST_DISABLED_VERSION = 3


def _on_error(request: DeleteTopicsRequest, code: int, message: str | None) -> DeleteTopicsResponse:
    named = [_result(n, ZERO_UUID, code, message) for n in request.topic_names]
    return DeleteTopicsResponse(responses=named + [_result(t.name, t.topic_id, code, message) for t in request.topics])


def _result(name: str | None, topic_id: bytes, code: int, message: str | None) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


@handles(DeleteTopicsRequest, DeleteTopicsResponse, "1-6", _on_error)
def delete_topics(ctx: RequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Sort the request into names and ids, refuse what is ambiguous, delete the rest in one write."""
    if not ctx.services.config.get_bool("delete.topic.enable"):
        if ctx.version < _FIRST_DISABLED_VERSION:
            raise ApiError(ErrorCode.INVALID_REQUEST, "This version does not support topic deletion.")
        raise ApiError(ErrorCode.TOPIC_DELETION_DISABLED)
    results, names, ids = _sort(request)
    state = ctx.services.controller.state
    doomed: dict[bytes, str] = {}
    for topic_id in ids:
        known = state.topic_names.get(topic_id)
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(_result(None, topic_id, code, DEFAULT_MESSAGES[code]))
        else:
            doomed[topic_id] = known
    for name in names:
        topic = state.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(_result(name, ZERO_UUID, code, DEFAULT_MESSAGES[code]))
        elif topic.topic_id in doomed:
            del doomed[topic.topic_id]
            text = "The provided topic name maps to an ID that was already supplied."
            results.append(_result(name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
        else:
            doomed[topic.topic_id] = name
    ctx.services.controller.delete_topics(doomed.values())
    results += [_result(name, topic_id, 0, None) for topic_id, name in doomed.items()]
    return DeleteTopicsResponse(responses=results)


def _sort(request: DeleteTopicsRequest) -> tuple[list[DeletableTopicResult], list[str], list[bytes]]:
    """Return the refusals so far, the names and the ids that stand once."""
    refused: list[DeletableTopicResult] = []
    names, ids = Counter(request.topic_names), Counter[bytes]()
    for topic in request.topics:
        if topic.name is not None and topic.topic_id != ZERO_UUID:
            text = "You may not specify both topic name and topic id."
            refused.append(_result(topic.name, topic.topic_id, ErrorCode.INVALID_REQUEST, text))
        elif topic.name is not None:
            names[topic.name] += 1
        elif topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] += 1
        else:
            text = "Neither topic name nor id were specified."
            refused.append(_result(None, ZERO_UUID, ErrorCode.INVALID_REQUEST, text))
    refused += [
        _result(n, ZERO_UUID, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for n, c in names.items() if c > 1
    ]
    refused += [_result(None, i, ErrorCode.INVALID_REQUEST, "Duplicate topic id.") for i, c in ids.items() if c > 1]
    return refused, [n for n, c in names.items() if c == 1], [i for i, c in ids.items() if c == 1]

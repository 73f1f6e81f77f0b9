"""CreatePartitions (key 37), versions 0-3: raise the number of partitions of topics (KIP-195)."""

from __future__ import annotations

from collections import Counter

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def _on_error(request: CreatePartitionsRequest, code: int, message: str | None) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(results=[_failed(t.name, ErrorCode(code), message) for t in request.topics])


def _failed(name: str, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


@handles(CreatePartitionsRequest, CreatePartitionsResponse, "0-3", _on_error)
def create_partitions(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Check every topic, then store the growth of those that may grow, in one write."""
    seen = Counter(t.name for t in request.topics)
    results = [
        _failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.") for name, count in seen.items() if count > 1
    ]
    grown = []
    for topic in request.topics:
        if seen[topic.name] > 1:
            continue
        assignments = None if topic.assignments is None else [a.broker_ids for a in topic.assignments]
        try:
            grown.append(ctx.services.controller.plan_growth(topic.name, topic.count, assignments))
        except ApiError as err:
            results.append(_failed(topic.name, err.code, err.message))
            continue
        results.append(CreatePartitionsTopicResult(name=topic.name))
    if not request.validate_only:
        ctx.services.controller.put_topics(grown)
    return CreatePartitionsResponse(results=results)

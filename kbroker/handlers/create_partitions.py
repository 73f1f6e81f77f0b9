"""CreatePartitions (key 37), versions 0-3: raise the number of partitions of topics (KIP-195)."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.cluster_state import TopicState
from kbroker.controller.topic_plans import MAX_PARTITIONS_PER_REQUEST
from kbroker.handlers.create_topics import check_room
from kbroker.handlers.in_effect import in_effect, time_left
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

_FIRST_STRICT_VERSION = 3
"""First version in which quotas of mutations refuse the growth of a topic (KIP-599)."""
MAX_TOPICS = 10_000
"""Most topics of one request, as in Kafka's controller (QuorumController.MAX_RECORDS_PER_USER_OP)."""


def _failed(name: str, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


@handles(CreatePartitionsRequest, CreatePartitionsResponse, "0-3", mirrored(CreatePartitionsResponse))
async def create_partitions(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Check every topic, then store the growth of the valid ones in pieces."""
    began_ms = ctx.services.clock.monotonic_ms()
    ctx.services.controller.check_is_controller()
    if len(request.topics) > MAX_TOPICS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    seen: dict[str, int] = {}
    for topic in request.topics:
        seen[topic.name] = seen.get(topic.name, 0) + 1
        await turn
    results: dict[str, CreatePartitionsTopicResult] = {}
    for name, count in seen.items():
        if count > 1:
            results[name] = _failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        await turn
    controller = ctx.services.controller
    left = MAX_PARTITIONS_PER_REQUEST
    grown: list[TopicState] = []
    for topic in request.topics:
        if seen[topic.name] == 1:
            try:
                plan = controller.plan_growth(topic.name, topic.count, _assignments(topic), left)
                added = topic.count - len(controller.decided.topics[topic.name].partitions)
                check_room(ctx, added)
                if ctx.metering is not None:
                    ctx.metering.mutate(added, strict=ctx.version >= _FIRST_STRICT_VERSION)
            except ApiError as err:
                results[topic.name] = _failed(topic.name, err.code, err.message)
            else:
                left -= added
                grown.append(plan)
                results[topic.name] = CreatePartitionsTopicResult(name=topic.name)
        await turn
    if not request.validate_only:
        left_ms = time_left(ctx, request.timeout_ms, began_ms)
        refused = await controller.grow_in_pieces(grown, left_ms)
        results.update((name, _failed(name, why.code, why.message)) for name, why in refused.items())
    return await in_effect(ctx, CreatePartitionsResponse(results=list(results.values())))


def _assignments(topic: CreatePartitionsTopic) -> Sequence[Sequence[int]] | None:
    if topic.assignments is None:
        return None
    if len(topic.assignments) > MAX_PARTITIONS_PER_REQUEST:
        return [()] * len(topic.assignments)  # refused for their number
    return [assignment.broker_ids for assignment in topic.assignments]

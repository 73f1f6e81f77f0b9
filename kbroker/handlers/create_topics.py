"""CreateTopics (key 19), versions 2-7: create topics, each for itself; answers tell configs from v5 (KIP-525)."""

from __future__ import annotations

from collections import Counter

from kbroker.cluster_state import TopicState
from kbroker.config.describe import describe_created_topic
from kbroker.config.validation import validate_topic
from kbroker.controller.decide import MAX_PARTITIONS_PER_REQUEST
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_METADATA_TOPIC = "__cluster_metadata"


def _on_error(request: CreateTopicsRequest, code: int, message: str | None) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_failed(t.name, code, message) for t in request.topics])


def _failed(name: str, code: int, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=code, error_message=message, num_partitions=-1, replication_factor=-1, configs=[]
    )


@handles(CreateTopicsRequest, CreateTopicsResponse, "2-7", _on_error)
def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Check every topic, then store those that may be, in one write."""
    seen = Counter(t.name for t in request.topics)
    wanted = [t for t in request.topics if seen[t.name] == 1 and t.name != _METADATA_TOPIC]
    _check_total(ctx, wanted)
    results, planned = [], []
    for topic in wanted:
        try:
            plan = _plan(ctx, topic)
        except ApiError as err:
            results.append(_failed(topic.name, err.code, err.message))
            continue
        planned.append(plan)
        results.append(_created(ctx, plan))
    if not request.validate_only:
        ctx.services.controller.put_topics(planned)
    for name, count in seen.items():
        if count > 1:
            results.append(_failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        elif name == _METADATA_TOPIC:
            text = f"Creation of internal topic {_METADATA_TOPIC} is prohibited."
            results.append(_failed(name, ErrorCode.INVALID_REQUEST, text))
    return CreateTopicsResponse(topics=results)


def _check_total(ctx: RequestContext, topics: list[CreatableTopic]) -> None:
    """Refuse a request for so many partitions that planning them would exhaust memory."""
    default = ctx.services.config.get_int("num.partitions")
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += default if topic.num_partitions == -1 else max(topic.num_partitions, 0)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _plan(ctx: RequestContext, topic: CreatableTopic) -> TopicState:
    controller = ctx.services.controller
    controller.check_new_name(topic.name)
    nulls = [c.name for c in topic.configs if c.value is None]
    if nulls:
        text = f"Null value not supported for topic configs: {','.join(nulls)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, text)
    configs = {c.name: c.value or "" for c in topic.configs}
    validate_topic(ctx.services.config, configs)
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            text = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        assignments[assignment.partition_index] = assignment.broker_ids
    return controller.plan_topic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


def _created(ctx: RequestContext, plan: TopicState) -> CreatableTopicResult:
    entries = sorted(describe_created_topic(ctx.services.config, plan.configs), key=lambda e: e.name)
    return CreatableTopicResult(
        name=plan.name,
        error_message=None,
        topic_id=plan.topic_id,
        num_partitions=len(plan.partitions),
        replication_factor=len(plan.partitions[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=e.name,
                value=e.value,
                read_only=e.read_only,
                config_source=e.source,
                is_sensitive=e.sensitive,
            )
            for e in entries
        ],
    )

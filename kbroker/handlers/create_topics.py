"""The APIs that create topics, and add partitions to them.

CreateTopics (key 19), versions 2-7: create topics independently; responses have configs from v5 (KIP-525).

CreatePartitions (key 37), versions 0-3: raise the number of partitions of topics (KIP-195).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbroker.cluster_state import VIEW_FILTER, VIEW_SOURCE, ClusterState, TopicState
from kbroker.config.describe import describe_created_topic
from kbroker.config.validation import validate_topic
from kbroker.controller.topic_plans import MAX_PARTITIONS_PER_REQUEST
from kbroker.handlers.groups import counted
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.remote_rules import check_names_no_segments
from kbroker.handlers.services import check_effect, look_for_effect
from kbroker.handlers.view_rules import plan_view
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_FIRST_STRICT_VERSION = 6
"""The first version in which a mutation quota refuses a creation (KIP-599)."""
_METADATA_TOPIC = "__cluster_metadata"


def _failed(name: str, code: int, message: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=code, error_message=message, num_partitions=-1, replication_factor=-1, configs=[]
    )


@handles(
    CreateTopicsRequest,
    CreateTopicsResponse,
    "2-7",
    mirrored(CreateTopicsResponse, num_partitions=-1, replication_factor=-1, configs=()),
)
async def create_topics(ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Check every topic, then store the valid topics in pieces."""
    began_ms = ctx.services.clock.monotonic_ms()
    ctx.services.controller.check_is_controller()
    seen = await counted(topic.name for topic in request.topics)
    await _check_total(ctx, request.topics, seen)
    results: dict[str, CreatableTopicResult] = {}
    planned = []
    entries: _Entries = {}
    for topic in request.topics:
        if _may_be(topic.name, seen):
            try:
                plan = await plan_of(ctx, topic)
                check_room(ctx, len(plan.partitions))
                if ctx.metering is not None:
                    ctx.metering.mutate(len(plan.partitions), strict=ctx.version >= _FIRST_STRICT_VERSION)
            except ApiError as err:
                results[topic.name] = _failed(topic.name, err.code, err.message)
            else:
                planned.append(plan)
                results[topic.name] = _created(ctx, plan, entries)
        await turn
    if request.validate_only:
        refused = await ctx.services.controller.validate_in_pieces(planned)
    else:
        left_ms = ctx.services.time_left(request.timeout_ms, began_ms)
        refused = await ctx.services.controller.put_in_pieces(planned, left_ms)
    results.update((name, _failed(name, why.code, why.message)) for name, why in refused.items())
    for name, count in seen.items():
        if count > 1:
            results[name] = _failed(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        elif name == _METADATA_TOPIC:
            text = f"Creation of internal topic {_METADATA_TOPIC} is prohibited."
            results[name] = _failed(name, ErrorCode.INVALID_REQUEST, text)
        await turn
    return await ctx.services.in_effect(CreateTopicsResponse(topics=list(results.values())))


def check_room(ctx: RequestContext, partitions: int) -> None:
    """Raise ApiError if a single node's disks are full.

    In a cluster there is no check, because other brokers may have room.
    """
    if ctx.services.cluster is None and not ctx.services.replicas.logs.has_room(partitions):
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full: no log directory has room for a partition.")


def _may_be(name: str, seen: Mapping[str, int]) -> bool:
    return seen[name] == 1 and name != _METADATA_TOPIC


async def _check_total(ctx: RequestContext, topics: Sequence[CreatableTopic], seen: Mapping[str, int]) -> None:
    """Refuse a request with so many partitions that planning their replicas would exhaust memory."""
    default = ctx.services.config.get_int("num.partitions")
    total = 0
    for topic in topics:
        await turn
        if not _may_be(topic.name, seen):
            continue
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += default if topic.num_partitions == -1 else max(topic.num_partitions, 0)
        if total > MAX_PARTITIONS_PER_REQUEST:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


async def plan_of(ctx: RequestContext, topic: CreatableTopic) -> TopicState:
    """Return the plan of a requested topic, without storing it. Raises ApiError."""
    controller = ctx.services.controller
    controller.check_new_name(topic.name)
    nulls: list[str] = []
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            nulls.append(config.name)
        configs[config.name] = config.value or ""
        await turn
    if nulls:
        text = f"Null value not supported for topic configs: {','.join(nulls)}"
        raise ApiError(ErrorCode.INVALID_CONFIG, text)
    validate_topic(ctx.services.config, configs)
    await look_for_effect(ctx.services, {}, configs)
    check_effect(ctx.services, topic.name, {}, configs)
    if configs.get(VIEW_SOURCE) or configs.get(VIEW_FILTER):
        return plan_view(ctx, topic, configs)
    assignments: dict[int, list[int]] = {}
    for assignment in topic.assignments:
        if assignment.partition_index in assignments:
            text = f"Found multiple manual partition assignments for partition {assignment.partition_index}"
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        assignments[assignment.partition_index] = assignment.broker_ids
        await turn
    return controller.plan_topic(topic.name, topic.num_partitions, topic.replication_factor, assignments, configs)


_Entries = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]
"""The config entries in the response, keyed by the configs that a topic sets.

Topics with the same configs share these entries.
"""


def _created(ctx: RequestContext, plan: TopicState, entries: _Entries) -> CreatableTopicResult:
    key = tuple(plan.configs.items())
    configs = entries.get(key)
    if configs is None:
        configs = entries[key] = _configs(ctx, plan)
    return CreatableTopicResult(
        name=plan.name,
        error_message=None,
        topic_id=plan.topic_id,
        num_partitions=len(plan.partitions),
        replication_factor=len(plan.partitions[0].replicas),
        configs=configs,
    )


def _configs(ctx: RequestContext, plan: TopicState) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name=e.name, value=e.value, read_only=e.read_only, config_source=e.source, is_sensitive=e.sensitive
        )
        for e in sorted(describe_created_topic(ctx.services.config, plan.configs), key=lambda e: e.name)
    ]


_GROWTH_STRICT_SINCE = 3
"""The first version in which a mutation quota refuses new partitions (KIP-599)."""
MAX_TOPICS = 10_000
"""The maximum number of topics in one request, as in Kafka's controller (QuorumController.MAX_RECORDS_PER_USER_OP)."""


def _not_grown(name: str, code: ErrorCode, message: str | None) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=message)


@handles(CreatePartitionsRequest, CreatePartitionsResponse, "0-3", mirrored(CreatePartitionsResponse))
async def create_partitions(ctx: RequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Check every topic, then store the new partitions of the valid topics in pieces."""
    began_ms = ctx.services.clock.monotonic_ms()
    ctx.services.controller.check_is_controller()
    if len(request.topics) > MAX_TOPICS:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    seen = await counted(topic.name for topic in request.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    for name, count in seen.items():
        if count > 1:
            results[name] = _not_grown(name, ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        await turn
    controller = ctx.services.controller
    await _check_growth(controller.decided, request.topics, seen)
    grown: list[TopicState] = []
    for topic in request.topics:
        if seen[topic.name] == 1:
            try:
                check_names_no_segments(topic.name, is_tiered=ctx.services.tiers is not None)
                plan = controller.plan_growth(topic.name, topic.count, _assignments(topic))
                added = topic.count - len(controller.decided.topics[topic.name].partitions)
                check_room(ctx, added)
                if ctx.metering is not None:
                    ctx.metering.mutate(added, strict=ctx.version >= _GROWTH_STRICT_SINCE)
            except ApiError as err:
                results[topic.name] = _not_grown(topic.name, err.code, err.message)
            else:
                grown.append(plan)
                results[topic.name] = CreatePartitionsTopicResult(name=topic.name)
        await turn
    if not request.validate_only:
        left_ms = ctx.services.time_left(request.timeout_ms, began_ms)
        refused = await controller.grow_in_pieces(grown, left_ms)
        results.update((name, _not_grown(name, why.code, why.message)) for name, why in refused.items())
    return await ctx.services.in_effect(CreatePartitionsResponse(results=list(results.values())))


async def _check_growth(state: ClusterState, topics: Sequence[CreatePartitionsTopic], seen: Mapping[str, int]) -> None:
    """Raise ApiError if the request would add too many partitions. Topics that the request repeats do not count."""
    total = 0
    for topic in topics:
        held = state.topics.get(topic.name) if seen[topic.name] == 1 else None
        if held is not None:
            total += max(topic.count - len(held.partitions), 0)
        if total > MAX_PARTITIONS_PER_REQUEST:
            text = "Excessively large number of additional partitions per request."
            raise ApiError(ErrorCode.POLICY_VIOLATION, text)
        await turn


def _assignments(topic: CreatePartitionsTopic) -> Sequence[Sequence[int]] | None:
    if topic.assignments is None:
        return None
    if len(topic.assignments) > MAX_PARTITIONS_PER_REQUEST:
        return [()] * len(topic.assignments)  # the topic is refused, because it has too many assignments
    return [assignment.broker_ids for assignment in topic.assignments]

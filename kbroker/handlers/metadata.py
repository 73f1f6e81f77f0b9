"""Metadata (key 3), versions 0-13: returns brokers, topics and leaders, and creates missing topics if allowed.

If `topics` is null (in v0: empty), all topics are returned. While a topic is being auto-created, the error is
UNKNOWN_TOPIC_OR_PARTITION, as in Apache Kafka: the client retries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.cluster_state import NO_LEADER, ClusterState, PartitionState, TopicState
from kbroker.controller.topic_plans import MAX_PARTITIONS_PER_REQUEST
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import every, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.wire import ZERO_UUID
from kbroker.topic_names import INTERNAL_TOPICS, topic_name_fault

log = logging.getLogger(__name__)

TOPIC_OPERATIONS = 0b1101_1111_1000
"""The bits of the operations on a topic.

Without an authorizer all operations are allowed (AclEntry.supportedOperations).
"""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)
_FIRST_ID_VERSION = 12
_LISTENERS_SINCE = 6
"""The first version whose clients know LISTENER_NOT_FOUND (KafkaApis: errorUnavailableListeners)."""


@handles(MetadataRequest, MetadataResponse, "0-13", mirrored(MetadataResponse, topic_authorized_operations=NOT_ASKED))
async def metadata(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Describe the current cluster. Topics that this request creates are returned only to later requests."""
    await ctx.services.first_metadata()
    services = ctx.services
    state = services.controller.state
    absent: list[str] = []
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else NOT_ASKED
    reached = state.reached_by(ctx.listener)
    hidden = frozenset(state.brokers).difference(b.node_id for b in reached)
    view = _View(operations, hidden, _hidden_code(ctx.version))
    if request.topics is None or (ctx.version == 0 and not request.topics):
        topics = await every(state.topics.values(), lambda topic: _describe(topic, view))
    else:
        topics = await _asked(ctx, request.topics, view, absent)
    answer = MetadataResponse(
        brokers=[MetadataResponseBroker(b.node_id, b.host, b.port, b.rack) for b in reached],
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )
    if absent and request.allow_auto_topic_creation and services.config.get_bool("auto.create.topics.enable"):
        await _create(ctx, absent)
        return await ctx.services.in_effect(answer)
    return answer


class _View(NamedTuple):
    """The parameters by which topics are described to a client."""

    operations: int
    hidden: frozenset[int]
    """The live brokers that lack the client's listener.

    The client cannot reach the partitions that these brokers lead.
    """
    hidden_code: ErrorCode


def _hidden_code(version: int) -> ErrorCode:
    return ErrorCode.LISTENER_NOT_FOUND if version >= _LISTENERS_SINCE else ErrorCode.LEADER_NOT_AVAILABLE


async def _asked(
    ctx: RequestContext, wanted: Sequence[MetadataRequestTopic], view: _View, absent: list[str]
) -> list[MetadataResponseTopic]:
    """Describe the named topics: by id if any topic has an id, else by name. Add to `absent` the topics to create."""
    names: dict[str, None] = {}
    ids: dict[bytes, None] = {}
    check = ctx.version < _FIRST_ID_VERSION
    for topic in wanted:
        if check:
            _check(topic, ctx.version)
        if topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = None
        names[topic.name or ""] = None
        await turn
    state = ctx.services.controller.state
    if ids:
        return await _by_id(state, ids, view)
    answers = []
    for name in names:
        known = state.topics.get(name)
        if known is not None:
            answers.append(await _describe(known, view))
        elif topic_name_fault(name) is not None:
            answers.append(_missing(ErrorCode.INVALID_TOPIC_EXCEPTION, name, ZERO_UUID, view.operations))
        else:
            answers.append(_missing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, ZERO_UUID, view.operations))
            absent.append(name)
        await turn
    return answers


def _check(topic: MetadataRequestTopic, version: int) -> None:
    """Refuse null names and topic ids in versions that do not support topic ids."""
    if topic.name is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic name can not be null for version {version}")
    if topic.topic_id != ZERO_UUID:
        text = f"Topic IDs are not supported in requests for version {version}"
        raise ApiError(ErrorCode.INVALID_REQUEST, text)


async def _by_id(state: ClusterState, ids: Iterable[bytes], view: _View) -> list[MetadataResponseTopic]:
    answers = []
    for topic_id in ids:
        name = state.topic_names.get(topic_id)
        if name is None:
            answers.append(_missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id, view.operations))
        else:
            answers.append(await _describe(state.topics[name], view))
        await turn
    return answers


async def _create(ctx: RequestContext, names: Sequence[str]) -> None:
    """Create topics. If they have too many partitions together, create none of them, as CreateTopics does."""
    controller = ctx.services.controller
    plans, partitions, refused = [], 0, ""
    for name in names:
        try:
            plan = controller.plan_auto(name)
            if ctx.metering is not None:
                ctx.metering.mutate(len(plan.partitions), strict=True)
        except ApiError as err:
            refused = refused or f"{name}: {err}"
        else:
            plans.append(plan)
            partitions += len(plan.partitions)
        if partitions > MAX_PARTITIONS_PER_REQUEST:
            log.warning("auto topic creation failed for %d topics: too many at once", len(names))
            return
        await turn
    if refused:
        count = len(names) - len(plans)
        log.warning("auto topic creation failed for %d topic(s), the first of them %s", count, refused)
    await controller.put_in_pieces(plans)


def _missing(code: ErrorCode, name: str | None, topic_id: bytes, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )


async def _describe(topic: TopicState, view: _View) -> MetadataResponseTopic:
    partitions = []
    for index, state in enumerate(topic.partitions):
        partitions.append(_partition(index, state))
        if state.leader in view.hidden:
            partitions[-1].leader_id, partitions[-1].error_code = NO_LEADER, view.hidden_code
        await turn
    return MetadataResponseTopic(
        # a topic without partitions is a view of a deleted topic
        error_code=0 if partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=view.operations,
    )


def _partition(index: int, state: PartitionState) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        error_code=0 if state.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        offline_replicas=list(state.offline),
    )

"""Metadata (key 3), versions 0-13: brokers, topics and leaders; creates missing topics where that is allowed.

Null topics mean all (an empty list in v0). A topic that is being auto-created answers UNKNOWN_TOPIC_OR_PARTITION, as
in Apache Kafka: the client asks again.
"""

from __future__ import annotations

import logging

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.controller.decide import INTERNAL_TOPICS, MAX_PARTITIONS_PER_REQUEST, topic_name_fault
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kbroker.protocol.wire import ZERO_UUID

log = logging.getLogger(__name__)

TOPIC_OPERATIONS = 0b1101_1111_1000
"""Bits of what an unauthorised cluster lets everybody do with a topic (AclEntry.supportedOperations)."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)
_FIRST_ID_VERSION = 12


def _on_error(request: MetadataRequest, code: int, _message: str | None) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=code, name=t.name or "", topic_id=t.topic_id, topic_authorized_operations=NOT_ASKED
            )
            for t in request.topics or []
        ],
        error_code=code,
    )


@handles(MetadataRequest, MetadataResponse, "0-13", _on_error)
def metadata(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Describe the cluster as it is now."""
    services = ctx.services
    state = services.controller.state
    everything = request.topics is None or (ctx.version == 0 and not request.topics)
    topics: list[MetadataResponseTopic] = []
    if everything:
        topics = [_describe(topic) for topic in state.topics.values()]
    else:
        _check(ctx, request)
        topics = _asked(ctx, request)
    if request.include_topic_authorized_operations:
        for topic in topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    return MetadataResponse(
        brokers=[MetadataResponseBroker(b.node_id, b.host, b.port, b.rack) for b in state.reached_by(ctx.listener)],
        cluster_id=state.cluster_id,
        controller_id=services.node_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _check(ctx: RequestContext, request: MetadataRequest) -> None:
    if ctx.version >= _FIRST_ID_VERSION:
        return
    for topic in request.topics or []:
        if topic.name is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Topic name can not be null for version {ctx.version}")
        if topic.topic_id != ZERO_UUID:
            text = f"Topic IDs are not supported in requests for version {ctx.version}"
            raise ApiError(ErrorCode.INVALID_REQUEST, text)


def _asked(ctx: RequestContext, request: MetadataRequest) -> list[MetadataResponseTopic]:
    """Describe the topics asked for: by id if any id is given, else by name."""
    state = ctx.services.controller.state
    wanted = request.topics or []
    ids = dict.fromkeys(t.topic_id for t in wanted if t.topic_id != ZERO_UUID)
    answers = []
    if ids:
        for topic_id in ids:
            name = state.topic_names.get(topic_id)
            if name is None:
                answers.append(_missing(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
            else:
                answers.append(_describe(state.topics[name]))
        return answers
    may_create = request.allow_auto_topic_creation and ctx.services.config.get_bool("auto.create.topics.enable")
    absent = []
    for name in dict.fromkeys(t.name or "" for t in wanted):
        topic = state.topics.get(name)
        if topic is not None:
            answers.append(_describe(topic))
        elif topic_name_fault(name) is not None:
            answers.append(_missing(ErrorCode.INVALID_TOPIC_EXCEPTION, name))
        else:
            answers.append(_missing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name))
            absent.append(name)
    if may_create and absent:
        _create(ctx, absent)
    return answers


def _create(ctx: RequestContext, names: list[str]) -> None:
    """Create topics in one write; as with CreateTopics, none when they have too many partitions in all."""
    controller = ctx.services.controller
    plans, partitions = [], 0
    for name in names:
        try:
            plan = controller.plan_auto(name)
        except ApiError as err:
            log.warning("auto topic creation failed for %s: %s", name, err)
            continue
        plans.append(plan)
        partitions += len(plan.partitions)
        if partitions > MAX_PARTITIONS_PER_REQUEST:
            log.warning("auto topic creation failed for %d topics: too many at once", len(names))
            return
    controller.put_topics(plans)


def _missing(code: ErrorCode, name: str | None, topic_id: bytes = ZERO_UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_ASKED,
    )


def _describe(topic: TopicState) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(i, p) for i, p in enumerate(topic.partitions)],
        topic_authorized_operations=NOT_ASKED,
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

"""The APIs of reassignments (KIP-455).

AlterPartitionReassignments (key 45), versions 0-1: begin or cancel the move of partitions (KIP-455).

Behaviour: for a single node see controller/single_broker.py; for a cluster, controller/cluster/reassignment.py. The
response is sent once all moves have begun.
Version notes: v1 may refuse targets of another size (KIP-860).

ListPartitionReassignments (key 46), version 0: the partitions that are being moved (KIP-455).

Behaviour: the controller's list; a single node has none. Partitions that are not being moved, and those that do not
exist, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.controller import single_broker
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

Partition = tuple[str, int]


@handles(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, "0-1")
async def alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel; if a partition is named again, its last entry counts."""
    asked: dict[Partition, Sequence[int] | None] = {}
    for topic in request.topics:
        for each in topic.partitions:
            asked[topic.name, each.partition_index] = each.replicas
            await turn
        await turn
    may_change_factor = request.allow_replication_factor_change
    services, cluster = ctx.services, ctx.services.cluster
    if cluster is not None:
        results = await cluster.controller.alter_reassignments(asked, may_change_factor=may_change_factor)
        return await _alteration(results, may_change_factor=may_change_factor)
    if not asked:
        return AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change_factor, error_message="")
    state = services.controller.state
    done = await single_broker.alter_reassignments(state, services.node_id, asked)
    return await _alteration(done, may_change_factor=may_change_factor)


async def _alteration(
    results: Mapping[Partition, ApiError | None], *, may_change_factor: bool
) -> AlterPartitionReassignmentsResponse:
    topics: dict[str, ReassignableTopicResponse] = {}
    for (name, index), error in results.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ReassignableTopicResponse(name)
        code, message = (0, None) if error is None else (error.code, error.message)
        topic.partitions.append(ReassignablePartitionResponse(index, code, message))
        await turn
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor, error_message=None, responses=list(topics.values())
    )


if TYPE_CHECKING:  # only a cluster needs it
    from kbroker.controller.cluster.assigned_replicas import Replicas


@handles(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, "0")
async def list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the reassignments of some partitions, or of all."""
    wanted: dict[Partition, None] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            for index in topic.partition_indexes:
                wanted[topic.name, index] = None
                await turn
            await turn
    cluster = ctx.services.cluster
    if cluster is None:
        return ListPartitionReassignmentsResponse(error_message=None)
    return await _listing(await cluster.controller.list_reassignments(wanted))


async def _listing(found: Mapping[Partition, Replicas]) -> ListPartitionReassignmentsResponse:
    topics: dict[str, OngoingTopicReassignment] = {}
    for (name, index), each in found.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OngoingTopicReassignment(name)
        moved = OngoingPartitionReassignment(index, list(each.replicas), list(each.adding), list(each.removing))
        topic.partitions.append(moved)
        await turn
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

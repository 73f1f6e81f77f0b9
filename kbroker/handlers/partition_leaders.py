"""The APIs that change leaders (KIP-460) and replicas (KIP-455) of partitions.

ElectLeaders (key 43), versions 0-2: elect leaders on request (KIP-460).

Behaviour: for a single node see controller/single_broker.py. In a cluster the controller elects the leaders. The
response is sent when this broker's own metadata contains the new leaders; partitions whose leader does not arrive in
time get REQUEST_TIMED_OUT. If all partitions are requested (null), the response omits the partitions that need no
election; a single node still names their topics, like Kafka 4.4.

Version notes: v0 elects only preferred leaders, and has no error for the complete request.

The APIs of reassignments (KIP-455).

AlterPartitionReassignments (key 45), versions 0-1: begin or cancel reassignments (KIP-455).

Behaviour: for a single node see controller/single_broker.py; for a cluster, controller/cluster/reassignment.py. The
response is sent once all reassignments have begun.

Version notes: v1 adds a field that makes the controller refuse a change of the number of replicas (KIP-860).

ListPartitionReassignments (key 46), version 0: the partitions that are being reassigned (KIP-455).

Behaviour: returns the controller's list; a single node has none. The response omits partitions that are not being
reassigned or do not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.cluster_state import ClusterState
from kbroker.controller import single_broker
from kbroker.controller.pacing import paced
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import ClusterServices
from kbroker.handlers.view_rules import is_view
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
Partition = tuple[str, int]
Results = Mapping[Partition, ApiError | None]


@handles(ElectLeadersRequest, ElectLeadersResponse, "0-2", mirrored(ElectLeadersResponse, "topic_partitions"))
async def elect_leaders(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders, wait until this broker's metadata contains the new leaders, and respond."""
    state = ctx.services.controller.state
    kind = request.election_type if ctx.version else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Value {kind} must be one of the values in [0, 1]")
    wanted: dict[Partition, None] = {}
    of_all = request.topic_partitions is None
    of_views: dict[Partition, ApiError | None] = {}
    if request.topic_partitions is None:
        for name, topic in state.topics.items():
            if topic.source is not None:
                continue
            wanted.update(((name, index), None) for index in range(len(topic.partitions)))
            await turn
    else:
        for each in request.topic_partitions:
            for index in each.partitions:
                if is_view(ctx.services, each.topic):
                    of_views[each.topic, index] = _of_source(each.topic)
                else:
                    wanted[each.topic, index] = None
                await turn
            await turn
    cluster = ctx.services.cluster
    if cluster is not None:
        return await _elected(cluster, kind, wanted, of_views, request.timeout_ms, of_all=of_all)
    results = of_views | await single_broker.elect_leaders(state, kind, wanted)
    if not of_all:
        return await _answer(results)
    results = {where: why for where, why in results.items() if why and why.code is not _NOT_NEEDED}
    return await _answer(results, state.topics)


def _of_source(topic: str) -> ApiError:
    text = f"Topic '{topic}' is a view: its leaders and replicas are those of its source."
    return ApiError(ErrorCode.INVALID_REQUEST, text)


async def _elected(
    cluster: ClusterServices,
    kind: int,
    wanted: Mapping[Partition, None],
    results: dict[Partition, ApiError | None],
    timeout_ms: int,
    *,
    of_all: bool,
) -> ElectLeadersResponse:
    """Elect leaders; `results` has the results that are already known."""
    elected = await cluster.controller.elect_leaders(kind, wanted)
    waited: dict[Partition, int] = {}
    async for partition, result in paced(elected.items()):
        if isinstance(result, ApiError):
            if not (of_all and result.code is _NOT_NEEDED):
                results[partition] = result
        else:
            results[partition] = None
            waited[partition] = result
    for partition in await asyncio.ensure_future(_unknown(cluster, waited, timeout_ms)):
        results[partition] = ApiError(ErrorCode.REQUEST_TIMED_OUT)
    return await _answer(results)


async def _unknown(cluster: ClusterServices, leaders: dict[Partition, int], timeout_ms: int) -> dict[Partition, int]:
    """Wait until this broker's metadata has the new leaders.

    After the timeout, return the partitions without a new leader.
    """

    def are_known(state: ClusterState) -> bool:
        for partition, leader in list(leaders.items()):
            found = state.partition(*partition)
            if found is not None and found.leader == leader:
                del leaders[partition]
        return not leaders

    await cluster.metadata.until(are_known, max(timeout_ms, 0) / 1000)
    return leaders


async def _answer(results: Results, names: Iterable[str] = ()) -> ElectLeadersResponse:
    topics = {name: ReplicaElectionResult(name) for name in names}
    for (name, index), error in results.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = ReplicaElectionResult(name)
        code, message = (0, None) if error is None else (error.code, error.message)
        topic.partition_result.append(PartitionResult(index, code, message))
        await turn
    return ElectLeadersResponse(replica_election_results=list(topics.values()))


@handles(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, "0-1")
async def alter_partition_reassignments(
    ctx: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel reassignments. If a request repeats a partition, the last entry counts."""
    asked: dict[Partition, Sequence[int] | None] = {}
    of_views: dict[Partition, ApiError | None] = {}
    for topic in request.topics:
        for each in topic.partitions:
            if is_view(ctx.services, topic.name):
                of_views[topic.name, each.partition_index] = _of_source(topic.name)
            else:
                asked[topic.name, each.partition_index] = each.replicas
            await turn
        await turn
    may_change_factor = request.allow_replication_factor_change
    services, cluster = ctx.services, ctx.services.cluster
    if cluster is not None:
        results = await cluster.controller.alter_reassignments(asked, may_change_factor=may_change_factor)
        return await _alteration({**of_views, **results}, may_change_factor=may_change_factor)
    if not asked and not of_views:
        return AlterPartitionReassignmentsResponse(allow_replication_factor_change=may_change_factor, error_message="")
    state = services.controller.state
    done = await single_broker.alter_reassignments(state, services.node_id, asked)
    return await _alteration({**of_views, **done}, may_change_factor=may_change_factor)


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


if TYPE_CHECKING:  # only a cluster needs this value
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

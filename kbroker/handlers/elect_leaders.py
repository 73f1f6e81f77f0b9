"""ElectLeaders (key 43), versions 0-2: elect leaders on request (KIP-460).

Behaviour: for a single node see controller/single_broker.py. In a cluster the controller elects; the response is sent
once this broker's own metadata has the new leaders, with REQUEST_TIMED_OUT for those that it does not have in time. If
all partitions are requested (null), those that need no election are left out; a single node still names their topics,
as Kafka 4.3 does.
Version notes: v0 has preferred leaders only, and no error of the whole request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from kbroker.cluster_state import ClusterState
from kbroker.controller import single_broker
from kbroker.controller.cluster.pacing import paced
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import ClusterServices
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.partition_reassignments import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED, UNCLEAN = 0, 1
_NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED
Partition = tuple[str, int]
Results = Mapping[Partition, ApiError | None]


@handles(ElectLeadersRequest, ElectLeadersResponse, "0-2", mirrored(ElectLeadersResponse, "topic_partitions"))
async def elect_leaders(ctx: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders, wait until this broker's metadata has them, and respond."""
    state = ctx.services.controller.state
    kind = request.election_type if ctx.version else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Value {kind} must be one of the values in [0, 1]")
    wanted: dict[Partition, None] = {}
    of_all = request.topic_partitions is None
    if request.topic_partitions is None:
        for name, topic in state.topics.items():
            wanted.update(((name, index), None) for index in range(len(topic.partitions)))
            await turn
    else:
        for each in request.topic_partitions:
            for index in each.partitions:
                wanted[each.topic, index] = None
                await turn
            await turn
    cluster = ctx.services.cluster
    if cluster is not None:
        return await _elected(cluster, kind, wanted, request.timeout_ms, of_all=of_all)
    results = await single_broker.elect_leaders(state, kind, wanted)
    if not of_all:
        return await _answer(results)
    results = {where: why for where, why in results.items() if why and why.code is not _NOT_NEEDED}
    return await _answer(results, state.topics)


async def _elected(
    cluster: ClusterServices, kind: int, wanted: Mapping[Partition, None], timeout_ms: int, *, of_all: bool
) -> ElectLeadersResponse:
    elected = await cluster.controller.elect_leaders(kind, wanted)
    waited: dict[Partition, int] = {}
    results: dict[Partition, ApiError | None] = {}
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
    """Wait until this broker has the new leaders in its metadata; return those that are missing after the timeout."""

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

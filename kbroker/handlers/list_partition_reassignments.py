"""ListPartitionReassignments (key 46), version 0: which partitions are being moved (KIP-455).

Behaviour: the controller's, and none on a node alone. Of partitions that are not being moved, and of those that do not
exist, nothing is said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:  # what only a cluster needs is not loaded elsewhere
    from kbroker.controller.cluster.assigned_replicas import Replicas
    from kbroker.controller.cluster.cluster_controller import ClusterController

Answer = Divided[ListPartitionReassignmentsResponse]
Partition = tuple[str, int]


@handles(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, "0")
def list_partition_reassignments(
    ctx: RequestContext, request: ListPartitionReassignmentsRequest
) -> Divided[ListPartitionReassignmentsResponse | Awaitable[Answer]]:
    """List those of some partitions, or all."""
    wanted: dict[Partition, None] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            for index in topic.partition_indexes:
                wanted[topic.name, index] = None
                yield
            yield
    cluster = ctx.services.cluster
    if cluster is None:
        return ListPartitionReassignmentsResponse(error_message=None)
    return _listed(cluster.controller, wanted)


async def _listed(controller: ClusterController, wanted: dict[Partition, None] | None) -> Answer:
    return _answer(await controller.list_reassignments(wanted))


def _answer(found: Mapping[Partition, Replicas]) -> Answer:
    topics: dict[str, OngoingTopicReassignment] = {}
    for (name, index), each in found.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = OngoingTopicReassignment(name)
        moved = OngoingPartitionReassignment(index, list(each.replicas), list(each.adding), list(each.removing))
        topic.partitions.append(moved)
        yield
    return ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))

"""LeaderAndIsr (key 4), versions 5-7: the controller says who leads and follows the partitions that are hosted here.

Behaviour: partition by partition, each with its own error, others served in between; see replica_manager/manager.py.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.from_controller import LeaderAndIsrRequest, LeaderAndIsrResponse
from kbroker.replica_manager.manager import ReplicaManager

Answer = Divided[LeaderAndIsrResponse | Awaitable[LeaderAndIsrResponse]]


@handles(LeaderAndIsrRequest, LeaderAndIsrResponse, "5-7", cluster=True)
def leader_and_isr(ctx: RequestContext, request: LeaderAndIsrRequest) -> Answer | Awaitable[Answer]:
    """Become leader and follower, once the configs of topics that are new here are known, and their files made."""
    cluster = in_cluster(ctx.services)
    unread = cluster.metadata.read_configs([topic.topic_name for topic in request.topic_states])
    if unread is not None or cluster.replica_manager.has_new(request):
        return _once_prepared(unread, cluster.replica_manager, request)
    return cluster.replica_manager.become_leader_or_follower(request)


async def _once_prepared(
    unread: Awaitable[None] | None, manager: ReplicaManager, request: LeaderAndIsrRequest
) -> Answer:
    if unread is not None:
        await unread
    return manager.with_files(request, await manager.make_ahead(request))

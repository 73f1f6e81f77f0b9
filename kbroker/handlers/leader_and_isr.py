"""LeaderAndIsr (key 4), versions 5-7: the controller says who leads and follows the partitions that are hosted here.

Behaviour: partition by partition, each with its own error, others served in between; see replica_manager/manager.py.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse


@handles(LeaderAndIsrRequest, LeaderAndIsrResponse, "5-7", cluster=True)
def leader_and_isr(
    ctx: RequestContext, request: LeaderAndIsrRequest
) -> Divided[LeaderAndIsrResponse | Awaitable[LeaderAndIsrResponse]]:
    """Become leader and follower."""
    return in_cluster(ctx.services).replica_manager.become_leader_or_follower(request)

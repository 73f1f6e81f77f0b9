"""AlterPartition (key 56), versions 2-3: a leader asks for other in-sync replicas (KIP-497).

Behaviour: the controller's; see controller/cluster/alter_partition.py. Version 3 names brokers' epochs, which are not
looked at in a cluster on ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.to_controller import AlterPartitionRequest, AlterPartitionResponse


@handles(AlterPartitionRequest, AlterPartitionResponse, "2-3", cluster=True)
def alter_partition(ctx: RequestContext, request: AlterPartitionRequest) -> Awaitable[AlterPartitionResponse]:
    """Grant what may be granted."""
    return in_cluster(ctx.services).controller.alter_partition(request)

"""StopReplica (key 5), versions 3-4: the controller says what is led and followed here no longer (KIP-570).

Behaviour: what is to be deleted has other names when the answer leaves; its files go later. See
replica_manager/manager.py.
"""

from __future__ import annotations

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import in_cluster
from kbroker.protocol.messages.from_controller import StopReplicaRequest, StopReplicaResponse


@handles(StopReplicaRequest, StopReplicaResponse, "3-4", cluster=True)
def stop_replica(ctx: RequestContext, request: StopReplicaRequest) -> Divided[StopReplicaResponse]:
    """Stop, and delete."""
    return in_cluster(ctx.services).replica_manager.stop_replicas(request)

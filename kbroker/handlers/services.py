"""The parts of the broker that handlers use; the composition root (broker/node.py) puts them together.

Owns nothing but the bundle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.clock import Clock
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replicas import Replicas
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.tls.of_broker import TlsListeners
from kbroker.security.tokens.token import TokenSettings
from kbroker.telemetry.instances import ClientTelemetry
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.marker_sender import Target
from kbroker.txn.shard import ProducerIdSupply

if TYPE_CHECKING:  # only a cluster needs these
    from kbroker.controller.cluster.cluster_controller import ClusterController
    from kbroker.controller.member.metadata import MemberMetadata
    from kbroker.replica_manager.manager import ReplicaManager
    from kbroker.txn.other_coordinators import OtherCoordinators


@dataclass(slots=True)
class ClusterServices:
    """The parts that only a node of a cluster has."""

    broker_epoch: Callable[[], int]
    """The number of this broker's registration: the id of the transaction that created its znode, -1 without one."""
    metadata: MemberMetadata
    replica_manager: ReplicaManager
    controller: ClusterController
    other_coordinators: OtherCoordinators
    """The transaction coordinators on other brokers."""


@dataclass(slots=True)
class Services:
    """The broker's parts, by role. `metadata` is read through `controller.state`."""

    node_id: int
    config: BrokerConfig
    clock: Clock
    controller: ClusterMetadata
    replicas: Replicas
    groups: GroupCoordinator
    producer_ids: ProducerIdSupply
    fetch_sessions: FetchSessions
    fetch_max_bytes: int
    transactions: TransactionCoordinator
    markers: Target
    tls: TlsListeners
    tokens: TokenSettings | None = None
    """The settings of delegation tokens; None: there are none."""
    cluster: ClusterServices | None = None
    """The parts of a node of a cluster; None on a single node."""
    telemetry: ClientTelemetry | None = None
    """Clients' metrics; None in a cluster, which stores no subscriptions to them."""
    authorizer: Authorizer | None = None
    """Decides on clients' rights; None: everything is allowed."""
    on_levels_changed: Callable[[], None] = lambda: None
    """Called after a change of a logger's level."""


def in_cluster(services: Services) -> ClusterServices:
    """Return the parts of a node of a cluster; raises ApiError on a single node, which serves none of these APIs."""
    if services.cluster is None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return services.cluster

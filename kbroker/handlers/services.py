"""The parts of the broker that handlers use. The composition root (broker/node.py) connects these parts.

Owns these objects, and two waits that several APIs share: the wait for the first UpdateMetadata of a cluster, and the
wait until a change is in effect. A change is in effect once it is stored, published to all, and applied on this broker.
Never changes anything, and never sends a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kbroker.clock import Clock
from kbroker.cluster_state import VIEW_SOURCE
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.controller.features import GROUP_VERSION, SHARE_VERSION
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.handlers.remote_rules import why_not_remote
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replicas import Replicas
from kbroker.schedules.targets import config_fault
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.tls.of_broker import TlsListeners
from kbroker.security.tokens.token import TokenSettings
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.telemetry.instances import ClientTelemetry
from kbroker.tiers.service import Tiers
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.marker_sender import Target
from kbroker.txn.shard import ProducerIdSupply
from kbroker.views.hosted_views import HostedViews

if TYPE_CHECKING:  # only a cluster needs these modules
    from kbroker.controller.cluster.cluster_controller import ClusterController
    from kbroker.controller.member.metadata import MemberMetadata
    from kbroker.replica_manager.manager import ReplicaManager
    from kbroker.txn.other_coordinators import OtherCoordinators


A = TypeVar("A")
_NEED_KBROKER: Final = {
    "delivery.delay.ms": ("0", "would not delay records"),
    "schedule.enable": ("false", "would not fire schedules"),
    VIEW_SOURCE: ("", "would not answer for views"),
    "filter.index.headers": ("", "would not index headers"),
}
"""Topic configs that take effect only if all replicas are on brokers of kbroker.

For each config: the value that has no effect, and the words for the behaviour of other brokers.
"""
FIRST_METADATA_MS = 5000
"""The time in ms for which a started broker waits for its first UpdateMetadata.

After this time the broker's responses contain no topics.
"""


@dataclass(slots=True)
class ClusterServices:
    """The additional parts that a node of a cluster has."""

    broker_epoch: Callable[[], int]
    """This broker's epoch: the id of the transaction that created the broker's znode; -1 while there is no znode."""
    metadata: MemberMetadata
    replica_manager: ReplicaManager
    controller: ClusterController
    other_coordinators: OtherCoordinators
    """The transaction coordinators on other brokers."""


class TopicConfigs(Protocol):
    """Decides whether topic configs can have an effect with the features of this broker or its cluster."""

    async def look(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Fetch the information that `why_without_effect` needs about these configs. Raises ApiError if this fails."""

    def why_without_effect(self, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Return the reason if a topic's new configs cannot have their effect. Return None if they can."""


@dataclass(slots=True)
class Services:
    """The parts of the broker, by role. `metadata` is read through `controller.state`."""

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
    shares: ShareCoordinator
    share: ShareDelivery
    """The share partitions that are in use."""
    markers: Target
    tls: TlsListeners
    views: HostedViews
    """The filtered views whose source topics have replicas on this broker."""
    tiers: Tiers | None = None
    """The partitions with remote storage; None on a broker without tiered storage."""
    tokens: TokenSettings | None = None
    """The settings of delegation tokens; None if tokens are disabled."""
    cluster: ClusterServices | None = None
    """The parts that only a node of a cluster has; None on a single node."""
    telemetry: ClientTelemetry | None = None
    """The metrics that clients push; None in a cluster, which stores no subscriptions to these metrics."""
    authorizer: Authorizer | None = None
    """Decides what clients are allowed to do; None if all requests are allowed."""
    record_checks: TopicConfigs | None = None
    """Decides which configs of topics can have an effect; None if all configs can."""
    on_levels_changed: Callable[[], None] = lambda: None
    """A function that is called after a change of a logger's level."""

    def time_left(self, timeout_ms: int, began_ms: float) -> int:
        """Return the remaining time of a request's timeout in ms, which may be negative.

        The timeout counts from the request's arrival, `began_ms` of the monotonic clock.
        """
        return timeout_ms - int(self.clock.monotonic_ms() - began_ms)

    async def in_effect(self, answer: A) -> A:
        """Return `answer` when all earlier decisions are in effect. Raises OSError."""
        published = self.controller.published()
        if published is not None:
            await published
        if not self.replicas.has_hosted_all:
            hosted = asyncio.get_running_loop().create_future()
            self.replicas.when_hosted(partial(_done, hosted))
            await hosted
        return answer

    async def first_metadata(self) -> None:
        """Wait for the first UpdateMetadata after the start of this broker, if the broker is a node of a cluster."""
        first_update = self.cluster.metadata.first_update(FIRST_METADATA_MS) if self.cluster is not None else None
        if first_update is not None:
            await first_update


async def look_for_effect(services: Services, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Fetch the information that `check_effect` needs. Raises ApiError."""
    if services.record_checks is not None:
        await services.record_checks.look(before, after)


def check_effect(services: Services, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise ApiError (INVALID_CONFIG) if a topic's new configs can have no effect here."""
    why = services.record_checks and services.record_checks.why_without_effect(topic, before, after)
    why = why or config_fault(topic, after)
    why = why or why_not_remote(topic, before, after, is_tiered=services.tiers is not None)
    if not why:
        why = _why_not_everywhere(services, before, after)
    if why:
        raise ApiError(ErrorCode.INVALID_CONFIG, why)


def _why_not_everywhere(services: Services, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    if services.cluster is None or services.controller.state.features.get(GROUP_VERSION):
        return None
    for name, (off, instead) in _NEED_KBROKER.items():
        if after.get(name, off).strip().lower() != off and before.get(name, off).strip().lower() == off:
            return f"{name} cannot be set: brokers of Apache Kafka may be members of this cluster, and {instead}"
    return None


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def in_cluster(services: Services) -> ClusterServices:
    """Return the parts of a node of a cluster. Raises ApiError on a single node, which does not serve the API."""
    if services.cluster is None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return services.cluster


def has_share_groups(services: Services) -> bool:
    """Whether the feature share.version enables share groups."""
    return services.controller.state.features.get(SHARE_VERSION, 0) >= 1


def share_coordinator(services: Services) -> ShareCoordinator:
    """Return the share coordinator. Raises ApiError if share groups are not enabled."""
    if not has_share_groups(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    return services.shares

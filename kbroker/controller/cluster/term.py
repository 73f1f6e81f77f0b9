"""One term of office: what the parts of an active controller share.

Owns nothing but the bundle, and how a part asks for its next turn. A term ends with the election of another controller,
with the session, or with the broker; nothing of it is used after.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass

from kbroker.controller.cluster.batch import Batch
from kbroker.controller.cluster.channels import Channels
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.cluster.fenced_tree import FencedTree


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The broker's configs by which its controller acts; times are ms, but for Kafka's own key in seconds."""

    inter_broker_listener: str = "PLAINTEXT"
    """inter.broker.listener.name: where brokers reach each other."""
    control_plane_listener: str | None = None
    """control.plane.listener.name: where the controller reaches brokers, if that is another one."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics that do not say otherwise."""
    delete_topics: bool = True
    """delete.topic.enable."""
    auto_rebalance: bool = True
    """auto.leader.rebalance.enable."""
    imbalance_percentage: int = 10
    """leader.imbalance.per.broker.percentage."""
    imbalance_check_seconds: int = 300
    """leader.imbalance.check.interval.seconds."""
    socket_timeout_ms: int = 30_000
    """controller.socket.timeout.ms: for how long the controller waits for a broker's answer, then it asks again."""

    @property
    def controller_listener(self) -> str:
        """Return the listener at which this controller reaches brokers."""
        return self.control_plane_listener or self.inter_broker_listener


Work = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Term:
    """What the active controller works with."""

    node_id: int
    tree: FencedTree
    context: Context
    channels: Channels
    config: ControllerConfig
    put: Callable[[Hashable, Work], None]
    """Let work have its turn behind what waits; of the same key no more than once at a time."""
    elected_uncleanly: Callable[[int], None] = lambda _count: None
    """Hears how many leaders were elected from outside the in-sync replicas."""

    @property
    def epoch(self) -> int:
        """Return the controller epoch."""
        return self.tree.epoch

    def batch(self) -> Batch:
        """Return a new batch of what brokers are told."""
        return Batch(self.context, self.channels)

    async def tell(self, partitions: Iterable[Partition] = (), brokers: Iterable[int] | None = None) -> None:
        """Tell brokers, all of them if none are named, which brokers live, and about partitions."""
        batch = self.batch()
        batch.metadata(partitions, brokers)
        await batch.send()

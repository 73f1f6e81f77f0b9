"""One term: the state that the parts of an active controller share.

Owns only these shared objects, the configs that the controller reads, and the way in which a part queues its next work.
A term ends with the election of another controller, with the session, or with the broker. After its end, no part of the
term is used.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from kbroker.controller.cluster.batch import Batch
from kbroker.controller.cluster.channels import Channels
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.cluster.fenced_tree import FencedTree


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The broker's configs that the controller uses. Times are in ms, except `imbalance_check_seconds`.

    A change of configs creates a new object of this class.
    """

    inter_broker_listener: str = "PLAINTEXT"
    """inter.broker.listener.name: the listener between brokers."""
    control_plane_listener: str | None = None
    """control.plane.listener.name: the listener for the controller's requests, if there is a separate listener."""
    unclean_leader_election: bool = False
    """unclean.leader.election.enable, for topics without their own setting."""
    delete_topics: bool = True
    """delete.topic.enable."""
    auto_rebalance: bool = True
    """auto.leader.rebalance.enable."""
    imbalance_percentage: int = 10
    """leader.imbalance.per.broker.percentage."""
    imbalance_check_seconds: int = 300
    """leader.imbalance.check.interval.seconds."""
    socket_timeout_ms: int = 30_000
    """controller.socket.timeout.ms: the time for which the controller waits for a response before it retries."""

    @property
    def controller_listener(self) -> str:
        """The listener for this controller's requests to brokers."""
        return self.control_plane_listener or self.inter_broker_listener


Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Term:
    """The active controller's dependencies."""

    node_id: int
    tree: FencedTree
    context: Context
    channels: Channels
    config: ControllerConfig
    put: Callable[[Hashable, Work], None]
    """Append work to the queue. The queue contains at most one event per key."""
    elected_uncleanly: Callable[[int], None] = lambda _count: None
    """A function that is called with the number of leaders elected from outside the in-sync replicas."""

    @property
    def epoch(self) -> int:
        """The controller epoch."""
        return self.tree.epoch

    def batch(self) -> Batch:
        """Return a new batch of requests to brokers."""
        return Batch(self.context, self.channels)

    async def notify(self, partitions: Iterable[Partition] = (), brokers: Iterable[int] | None = None) -> None:
        """Send the list of live brokers, and the metadata of partitions, to the given brokers or to all brokers."""
        batch = self.batch()
        batch.metadata(partitions, brokers)
        await batch.send()

"""One term of office: what the parts of an active controller share.

Owns nothing but the bundle, and how a part asks for its next turn. A term ends with the election of another controller,
with the session, or with the broker; nothing of it is used after.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from kbroker.controller.cluster.batch import Batch
from kbroker.controller.cluster.channels import Channels
from kbroker.controller.cluster.config import ControllerConfig
from kbroker.controller.cluster.context import Context, Partition
from kbroker.controller.cluster.fenced_tree import FencedTree

Work = Callable[[], Coroutine[Any, Any, None]]


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

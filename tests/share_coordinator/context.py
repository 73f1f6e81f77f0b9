"""A shard of the share coordinator under the real runtime, and requests to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.share_coordinator.config import ShareCoordinatorConfig
from kbroker.share_coordinator.persister import Change
from kbroker.share_coordinator.shard import ShareShard
from kbroker.share_coordinator.share_partition_state import SharePartition, SharePartitionState
from kbroker.share_coordinator.state_batches import StateBatch
from tests.coordination.still import START_MS, Still

TOPIC, OTHER = b"t" * 16, b"u" * 16
PLACE = SharePartition("g", TOPIC, 0)


class Context(Still[ShareShard]):
    """Share partitions of a shard. `pruned` collects the offsets below which records should be deleted."""

    def __init__(
        self, updates_per_snapshot: int = 3, log: Sequence[CoordinatorRecord] = (), now: int = START_MS
    ) -> None:
        self.config = ShareCoordinatorConfig(
            updates_per_snapshot=updates_per_snapshot, prune_interval_ms=60_000, cold_snapshot_interval_ms=300_000
        )
        self.topics = {TOPIC: 3, OTHER: 3}
        self.pruned: list[int] = []
        super().__init__(self._make_shard, log, now)

    def _make_shard(self, _partition: int) -> ShareShard:
        return ShareShard(
            self.config, lambda topic_id: self.topics.get(topic_id, -1), lambda offset, _now: self.pruned.append(offset)
        )

    def restarted(self, *, pruned: bool = False) -> Context:
        """Return a context whose shard has loaded the log of this one, without its redundant records if `pruned`."""
        begin = max(self.pruned, default=0) if pruned else 0
        return Context(self.config.updates_per_snapshot, self.log[begin:], self.now)

    @property
    def states(self) -> dict[SharePartition, SharePartitionState]:
        return dict(self.shard.states())

    # -- requests

    def initialize(self, epoch: int = 0, start: int = 0, place: SharePartition = PLACE) -> Any:
        return self.ask(lambda shard, now: shard.initialize(place, epoch, start, now))

    def read(self, leader_epoch: int = 0, place: SharePartition = PLACE) -> Any:
        return self.ask(lambda shard, now: shard.read(place, leader_epoch, now))

    def write(
        self,
        batches: Sequence[tuple[int, int, int, int]] = (),
        start: int = -1,
        epoch: int = 0,
        leader_epoch: int = 0,
        count: int = -1,
        place: SharePartition = PLACE,
    ) -> Any:
        change = Change(epoch, leader_epoch, start, count, [StateBatch(*each) for each in batches])
        return self.ask(lambda shard, now: shard.write(place, change, now))

    def delete(self, place: SharePartition = PLACE) -> Any:
        return self.ask(lambda shard, _now: shard.delete(place))

    def summary(self, place: SharePartition = PLACE) -> Any:
        return self.shard.read_summary(place)

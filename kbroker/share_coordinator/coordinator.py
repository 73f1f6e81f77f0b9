"""The share coordinator for the handlers and for this broker's own share groups.

Owns the deletion of redundant records, the preparation of long lists of state batches, and the answer while this broker
does not serve a partition of the topic. Never decides about a state: shard.py does.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from kbroker.clock import Clock
from kbroker.cluster_state import SHARE_STATE_TOPIC, ClusterState
from kbroker.coordination.service import CoordinatorService
from kbroker.coordination.shard import Outcome, Writer
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.wire import uuid_text
from kbroker.share_coordinator.config import ShareCoordinatorConfig
from kbroker.share_coordinator.persister import Change, Done, State, Summary
from kbroker.share_coordinator.shard import MOST_BATCHES, ShareShard
from kbroker.share_coordinator.share_partition_state import SharePartition
from kbroker.share_coordinator.state_batches import NO_BATCHES, Batches, StateBatch, are_ranges, combined

log = logging.getLogger(__name__)

FEW_BATCHES: Final = 200
"""The maximum number of batches of a write that are combined in one step. Longer lists are first sorted, in pieces."""


class PrunableWriter(Writer, Protocol):
    """The log of a topic whose coordinator deletes its oldest records."""

    def delete_before(self, partition: int, offset: int, now_ms: int) -> None:
        """Delete the records below an offset. Raises ApiError."""


class ShareCoordinator(CoordinatorService[ShareShard]):
    """The state of all share partitions that this broker coordinates. `state` returns the newest cluster state."""

    def __init__(
        self,
        config: ShareCoordinatorConfig,
        writer: PrunableWriter,
        clock: Clock,
        state: Callable[[], ClusterState],
    ) -> None:
        self._state = state
        self._pruner = writer
        self._pruned_to: dict[int, int] = {}
        super().__init__(
            SHARE_STATE_TOPIC,
            config.num_partitions,
            lambda partition: ShareShard(config, self._partitions_of, partial(self._prune, partition)),
            writer,
            clock,
            config.write_timeout_ms,
        )

    def _partitions_of(self, topic_id: bytes) -> int:
        state = self._state()
        name = state.topic_names.get(topic_id)
        return -1 if name is None else len(state.topics[name].partitions)

    def _prune(self, partition: int, offset: int, now_ms: int) -> None:
        if self._pruned_to.get(partition) == offset:
            return
        try:
            self._pruner.delete_before(partition, offset, now_ms)
        except (ApiError, OSError) as err:
            log.warning("%s-%d: records below %d were not deleted: %s", SHARE_STATE_TOPIC, partition, offset, err)
        else:
            self._pruned_to[partition] = offset

    def resign(self, partition: int) -> None:
        self._pruned_to.pop(partition, None)
        super().resign(partition)

    def on_topic_deleted(self) -> None:
        self._pruned_to.clear()
        super().on_topic_deleted()

    def on_topics_deleted(self, topic_ids: Iterable[bytes]) -> None:
        """Delete the states of deleted topics. The topics are named by their former ids."""
        ids = list(topic_ids)
        for partition, shard in list(self._runtime.shards()):
            if shard is not None:
                self._runtime.run(partition, lambda shard, _now: shard.on_topics_deleted(ids), _ignore)

    def partition_of(self, place: SharePartition) -> int:
        """Return the partition of the topic that contains a share partition's state."""
        return self.partition_for(coordinator_key(place))

    # -- operations

    def initialize(self, place: SharePartition, state_epoch: int, start_offset: int) -> Done | Awaitable[Done]:
        """Handle an InitializeShareGroupState."""
        return self._runtime.run(
            self.partition_of(place),
            lambda shard, now: shard.initialize(place, state_epoch, start_offset, now),
            partial(_not_done, "initialize"),
        )

    def read(self, place: SharePartition, leader_epoch: int) -> State | Awaitable[State]:
        """Handle a ReadShareGroupState."""
        return self._runtime.run(
            self.partition_of(place),
            lambda shard, now: shard.read(place, leader_epoch, now),
            lambda code, message: State(code, message=_unable("read", code, message)),
        )

    def write(self, place: SharePartition, change: Change) -> Done | Awaitable[Done]:
        """Handle a WriteShareGroupState."""

        def written(change: Change) -> Done | Awaitable[Done]:
            return self._runtime.run(
                self.partition_of(place),
                lambda shard, now: shard.write(place, change, now),
                partial(_not_done, "write"),
            )

        async def of_many() -> Done:
            return await awaited(written(change._replace(batches=await _sorted(change.batches))))

        if FEW_BATCHES < len(change.batches) <= MOST_BATCHES and are_ranges(change.batches):
            return of_many()
        return written(change)

    def delete(self, place: SharePartition) -> Done | Awaitable[Done]:
        """Handle a DeleteShareGroupState."""
        return self._runtime.run(
            self.partition_of(place), lambda shard, _now: shard.delete(place), partial(_not_done, "delete")
        )

    def read_summary(self, place: SharePartition) -> Summary | Awaitable[Summary]:
        """Handle a ReadShareGroupStateSummary."""
        return self._runtime.run(
            self.partition_of(place),
            lambda shard, _now: Outcome(reply=shard.read_summary(place)),
            lambda code, message: Summary(code, message=_unable("read", code, message, " summary")),
        )


async def _sorted(batches: Sequence[StateBatch]) -> Batches:
    """Return many state batches in order, without overlaps, in steps."""
    left = sorted(batches)
    found = NO_BATCHES
    for at in range(0, len(left), FEW_BATCHES):
        found = combined(found, left[at : at + FEW_BATCHES], -1)
        await turn
    return found


def coordinator_key(place: SharePartition) -> str:
    """Return the key of FindCoordinator for a share partition: group, topic id and partition, joined by colons."""
    return f"{place.group}:{uuid_text(place.topic_id)}:{place.partition}"


def _unable(operation: str, code: ErrorCode, message: str | None, what: str = "") -> str:
    return f"Unable to {operation} share group state{what}: {message or DEFAULT_MESSAGES.get(code, code.name)}"


def _not_done(operation: str, code: ErrorCode, message: str | None) -> Done:
    return Done(code, _unable(operation, code, message))


def _ignore(_code: ErrorCode, _message: str | None) -> None:
    """Ignore a failure: it has been logged, and the coordinator tries again or has moved."""

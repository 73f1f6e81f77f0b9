"""The common interface of the coordinators to the broker: their lifecycle, and the partition of a key.

Owns the steps that lead from leadership of partitions to loaded shards. Never decides anything about a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kbroker.clock import Clock
from kbroker.coordination.partitioning import Partitioning
from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import Shard, Writer

S = TypeVar("S", bound=Shard)


class CoordinatorService(Generic[S]):
    """The lifecycle of a coordinator: one shard for each partition of `topic` that this broker leads.

    `make_shard` creates the shard of a partition. `planned` is the number of partitions with which the topic is
    created.
    """

    def __init__(
        self,
        topic: str,
        planned: int,
        make_shard: Callable[[int], S],
        writer: Writer,
        clock: Clock,
        write_timeout_ms: int,
    ) -> None:
        self._writer = writer
        self._partitions = Partitioning(topic, planned, writer.partition_count)
        self.partition_for = self._partitions.of
        self._closed = False
        self._runtime: Runtime[S] = Runtime(topic, make_shard, writer, clock, write_timeout_ms)

    def ensure_topic(self) -> bool:
        """Return whether the topic exists. If it does not, start its creation."""
        if self._writer.partition_count() == 0:
            self._writer.ensure_topic()
        return self._writer.partition_count() > 0

    def on_leadership(self, partition: int, epoch: int) -> None:
        """Begin to coordinate a partition that this broker now leads."""
        if self._closed:
            return
        self._partitions.leads(partition)
        self._runtime.lead(partition, epoch)

    def resign(self, partition: int) -> None:
        self._runtime.resign(partition)

    def on_topic_deleted(self) -> None:
        """Stop coordinating. A topic that is created later may have another number of partitions."""
        self._runtime.resign_all()
        self._partitions.forget()

    def loaded(self) -> list[S]:
        """Return the loaded shards."""
        return self._runtime.loaded()

    def partition_states(self) -> dict[str, int]:
        """Return the number of partitions coordinated here, by state."""
        return self._runtime.states()

    def unreadable_records(self) -> dict[int, int]:
        """Return, for each partition, the number of records that its load could not read."""
        return self._runtime.unreadable()

    @property
    def is_loaded(self) -> bool:
        """Whether every partition that this broker has to coordinate is loaded."""
        return self._runtime.is_loaded

    def tick(self) -> None:
        """Run the timers that are due. Only needed if a caller advances the clock."""
        self._runtime.tick()

    def close(self) -> None:
        """Answer every parked request and stop."""
        self._closed = True
        self._runtime.close()

"""What the coordinators have in common as the rest of the broker sees them: their life, and which partition a key has.

Owns the way from leadership of partitions to shards that are loaded. Never decides anything about a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kbroker.clock import Clock
from kbroker.coordination.interfaces import Shard, Writer
from kbroker.coordination.partitioning import Partitioning
from kbroker.coordination.runtime import Runtime

S = TypeVar("S", bound=Shard)


class CoordinatorService(Generic[S]):
    """The life of a coordinator: one shard for each partition of `topic` that this broker leads.

    `make_shard` makes the shard of a partition. `planned` is how many partitions the topic will be created with.
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
        self._closed = False
        self._runtime: Runtime[S] = Runtime(topic, make_shard, writer, clock, write_timeout_ms)

    def partition_for(self, key: str) -> int:
        """Return the partition of the topic that coordinates a key, also if the topic is yet to be created."""
        return self._partitions.of(key)

    def ensure_topic(self) -> bool:
        """Return whether the topic exists; where it does not, have it created."""
        if self._writer.partition_count() == 0:
            self._writer.ensure_topic()
        return self._writer.partition_count() > 0

    def on_leadership(self, partition: int, epoch: int) -> None:
        """Begin to coordinate a partition that this broker leads now."""
        if self._closed:
            return
        self._partitions.leads(partition)
        self._runtime.lead(partition, epoch)

    def resign(self, partition: int) -> None:
        self._runtime.resign(partition)

    def on_topic_deleted(self) -> None:
        """Stop coordinating; a topic that is created later may have another number of partitions."""
        self._runtime.resign_all()
        self._partitions.forget()

    def loaded(self) -> list[S]:
        """Return the shards that are loaded."""
        return self._runtime.loaded()

    def partition_states(self) -> dict[str, int]:
        """Return how many partitions that are to be coordinated here are in which state."""
        return self._runtime.states()

    def unreadable_records(self) -> dict[int, int]:
        """Return by partition how many records could not be read when it was loaded."""
        return self._runtime.unreadable()

    @property
    def is_loaded(self) -> bool:
        """Whether every partition that is to be coordinated here has been loaded."""
        return self._runtime.is_loaded

    def tick(self) -> None:
        """Run the timers that are due; needed only where the clock is advanced by hand."""
        self._runtime.tick()

    def close(self) -> None:
        """Answer every parked request and stop."""
        self._closed = True
        self._runtime.close()
